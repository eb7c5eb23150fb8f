package train

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestCarryOptimizer: a new run from a checkpoint with its optimizer does the same updates as one that goes on, if all else is the
// same; it may have another batch, says that it is new, and remembers its past when it is resumed.
func TestCarryOptimizer(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	train := func(args ...string) (said, out string) {
		t.Helper()
		tr, _ := openRun(t, file, args...)
		said = strings.Join(tr.Notes, "\n")
		check(t, errors.Join(tr.Train(t.Context(), &events{}), tr.Close()))
		return said, tr.Setup.Spec.Out
	}
	constant := []string{"schedule=constant", "warmup_steps=0", "save_every=3"}
	_, first := train(append(constant, "max_steps=3", "out="+dir+"/first")...)
	from := first + "/checkpoint-3"
	tokenizer := "tokenizer=" + from
	said, next := train(append(constant, "model="+from, tokenizer, "carry_optimizer=true", "max_steps=2", "save_every=1", "out="+dir+"/next")...)
	if !strings.Contains(said, "this is a new run") || !strings.Contains(said, "after 3 updates") {
		t.Errorf("said %q", said)
	}
	_, cold := train(append(constant, "model="+from, tokenizer, "max_steps=2", "out="+dir+"/cold")...)
	a, b := losses(t, next+"/metrics.jsonl"), losses(t, cold+"/metrics.jsonl")
	if a[0] != b[0] || a[1] == b[1] {
		t.Errorf("losses %v with the optimizer's state, %v without: the first are of the same weights, the second are not", a, b)
	}

	said, _ = train(append(constant, "model="+from, tokenizer, "carry_optimizer=true", "max_steps=3", "save_every=1", "out="+dir+"/next")...)
	if strings.Contains(said, "this is a new run") || carriedBy(t, next+"/checkpoint-3") != 3 {
		t.Errorf("resumed: %q, %d updates before it", said, carriedBy(t, next+"/checkpoint-3"))
	}
	other := append(slices.Clone(constant), "model="+next+"/checkpoint-3", "tokenizer="+next+"/checkpoint-3", "carry_optimizer=true", "max_steps=1", "global_batch=8", "seed=9", "out="+dir+"/other")
	if said, out := train(other...); !strings.Contains(said, "after 6 updates") || carriedBy(t, out+"/checkpoint-1") != 6 {
		t.Errorf("another batch: %q", said)
	}
}

// carriedBy returns the number of updates before the first step of a checkpoint's run.
func carriedBy(t *testing.T, path string) int {
	t.Helper()
	ck, err := checkpoint.Open(checkpoint.Disk{}, path)
	check(t, err)
	defer ck.Close()
	var from origin
	check(t, json.Unmarshal(ck.Trainer.Plan, &from))
	return from.carried.Updates
}

// TestNothingToCarry: without a checkpoint of the same optimizer, carry_optimizer is refused before anything is planned.
func TestNothingToCarry(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	tr, _ := openRun(t, file, "max_steps=1")
	check(t, errors.Join(tr.Train(t.Context(), &events{}), tr.Close()))
	from := dir + "/run/checkpoint-1"
	refused := func(want string, args ...string) {
		t.Helper()
		s, err := Prepare(t.Context(), settled(t, file, append(args, "carry_optimizer=true", "out="+dir+"/new")...), func(string, int64, int64) {})
		check(t, err)
		defer s.Close()
		if err := s.CheckOut(); !errors.Is(err, config.ErrConfig) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "or leave carry_optimizer out") {
			t.Errorf("%q: %v", want, err)
		}
	}
	refused("there is no checkpoint")
	refused("was trained with adamw, and optimizer is lion; hint: set optimizer: adamw", "model="+from, "tokenizer="+from, "optimizer=lion")
	check(t, os.RemoveAll(from+"/state"))
	refused("is no checkpoint", "model="+from, "tokenizer="+from)
}
