package train

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/optimizer"
)

// TestOptimizers: a tiny model learns with each optimizer, in fp32 and in bf16, and losses and checkpoints are the same, bit
// for bit, whether weights and state are on the device or on the host and the disk. A checkpoint has the moments of the
// optimizer's row, and no others; a run with another optimizer does not resume from it.
func TestOptimizers(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for o := range optimizer.NumOptimizers {
		for _, precision := range []string{"fp32", "bf16"} {
			dir := t.TempDir()
			file := runConfig(t, dir)
			run := func(name string, rate float64, overrides ...string) []float64 {
				t.Helper()
				out := filepath.Join(dir, name)
				check(t, trainFile(t.Context(), file, append([]string{"max_steps=20", "save_every=0", fmt.Sprint("learning_rate=", rate), "optimizer=" + o.String(), "precision=" + precision, "out=" + out,
					"optimizer_state=" + map[string]string{"fp32": "fp32", "bf16": "bf16"}[precision]}, overrides...)))
				return losses(t, filepath.Join(out, "metrics.jsonl"))
			}
			var plain []float64
			var rate float64
			var first string
			for _, rate = range []float64{1e-2, 2e-3, 0.2, 1} { // which of them suits depends on the optimizer
				first = fmt.Sprint("at", rate)
				if plain = run(first, rate); plain[len(plain)-1] < plain[0]-0.3 {
					break
				}
				plain = nil
			}
			if plain == nil {
				t.Fatalf("%v in %s learns at no learning rate", o, precision)
			}
			if got := run("away", rate, "plan.weights=host", "plan.grads=host", "plan.state=disk", "plan.micro_batch=1"); !slices.Equal(got, plain) {
				t.Errorf("%v in %s: with the state on the disk, losses are %v, not %v", o, precision, got, plain)
			}
			a, b := filepath.Join(dir, first, "checkpoint-20"), filepath.Join(dir, "away", "checkpoint-20")
			if x, y := read(t, a, "model.safetensors"), read(t, b, "model.safetensors"); !slices.Equal(x, y) {
				t.Errorf("%v in %s: weights depend on the plan", o, precision)
			}
			sameState(t, a, b, o)
			other := (o + 1) % optimizer.NumOptimizers
			err := trainFile(t.Context(), file, []string{"max_steps=21", "optimizer=" + other.String(), "precision=" + precision, "out=" + filepath.Join(dir, first)})
			if want := fmt.Sprintf("optimizer is %v there and %v here", o, other); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("resumed with %v: %v", other, err)
			}
		}
	}
}

// sameState compares the moments of two checkpoints, which must be those of an optimizer.
func sameState(t *testing.T, a, b string, o optimizer.Optimizer) {
	t.Helper()
	for k := range optimizer.NumKinds {
		if !k.Moment() {
			continue
		}
		name := filepath.Join("state", k.String()+".safetensors")
		kept := slices.Contains(o.Moments(), k)
		if paths.Exists(filepath.Join(a, name)) != kept {
			t.Errorf("%v: %s is there: %v", o, name, !kept)
		} else if kept && !slices.Equal(read(t, a, name), read(t, b, name)) {
			t.Errorf("%v: the %s depends on the plan", o, k.Words())
		}
	}
}
