package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/train"
)

// validations reads a run's validation losses between steps, by step.
func validations(t *testing.T, dir string) map[int]float64 {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "metrics.jsonl"))
	check(t, err)
	defer f.Close()
	list := map[int]float64{}
	for s := bufio.NewScanner(f); s.Scan(); {
		var m train.Metrics
		check(t, json.Unmarshal(s.Bytes(), &m))
		if m.ValLoss != 0 {
			list[m.Step] = m.ValLoss
		}
	}
	return list
}

// TestKeepBest: besides the latest checkpoint, the one with the least validation loss is
// kept, even by a run that is resumed and one that never improves again.
func TestKeepBest(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "eval_every: 1", "keep_best: true", "keep_checkpoints: 1")
	var early, got trained
	// A rate that learns, then one that destroys what was learnt.
	call("train", file, "--json", "max_steps=4", "learning_rate=0.003").must(t, 0).into(t, &early)
	call("train", file, "--json", "max_steps=8", "learning_rate=3").must(t, 0, "step 8: validation loss").into(t, &got)
	losses := validations(t, dir+"/run")
	if len(losses) < 6 {
		t.Fatalf("validations %v", losses)
	}
	losses[4], losses[8] = early.ValLoss, got.ValLoss // at the end of a run
	best := 1
	for step, loss := range losses {
		if loss < losses[best] {
			best = step
		}
	}
	if got.Best == nil || int(got.Best.Step) != best || got.Best.Loss != losses[best] || best == 8 {
		t.Fatalf("best %+v, of the validations %v it is step %d", got.Best, losses, best)
	}
	left, err := filepath.Glob(dir + "/run/checkpoint-*")
	check(t, err)
	want := []string{fmt.Sprintf("%s/run/checkpoint-%d", dir, best), dir + "/run/checkpoint-8"}
	if slices.Sort(left); !slices.Equal(left, want) || got.Best.Checkpoint != want[0] {
		t.Errorf("checkpoints %v, want %v; the best is %s", left, want, got.Best.Checkpoint)
	}
	for _, other := range []string{"keep_best=false", "keep_best=true", "eval_batches=1"} { // of a run that has ended
		call("train", file, "max_steps=8", "learning_rate=3", other).must(t, 0)
	}
	call("train", file, "keep_best=true", "eval_every=0", "max_steps=9").must(t, 2, "keep_best", "eval_every")
}
