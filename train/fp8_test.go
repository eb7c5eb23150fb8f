package train

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestFP8: a run in FP8 has the same bits wherever it was stopped and whatever the plan, also if the configuration it goes on with leaves
// the precision open. It learns what a run in bf16 does, and what is not built is refused by name.
func TestFP8(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	run := func(out string, steps int, more ...string) error {
		return trainFile(t.Context(), file, append([]string{"save_every=0", "schedule=constant", "learning_rate=1e-2", "out=" + filepath.Join(dir, out), fmt.Sprint("max_steps=", steps)}, more...))
	}
	check(t, run("one", 8, "precision=fp8"))
	check(t, run("two", 3, "precision=fp8", "plan.weights=host", "plan.grads=host", "plan.state=disk", "plan.micro_batch=1"))
	check(t, run("two", 8))
	for _, name := range []string{"model.safetensors", "state/m.safetensors", "state/v.safetensors"} {
		if !slices.Equal(read(t, dir+"/one/checkpoint-8", name), read(t, dir+"/two/checkpoint-8", name)) {
			t.Errorf("%s depends on where the run was stopped or on the plan", name)
		}
	}
	check(t, run("bf16", 8, "precision=bf16"))
	in8, in16 := losses(t, dir+"/one/metrics.jsonl"), losses(t, dir+"/bf16/metrics.jsonl")
	if last := len(in8) - 1; in8[last] > in8[0]-0.2 || slices.Equal(in8, in16) || in8[last] > 1.02*in16[last] {
		t.Errorf("losses %v, in bf16 %v", in8, in16)
	}
	for _, c := range []struct{ says, override string }{
		{"quantize", "quantize=nf4"}, {"experts", "model.type=mixtral"}, {"plan.tensor", "plan.tensor=2 ranks=2"},
	} {
		if err := run("refused", 8, append(strings.Fields(c.override), "precision=fp8")...); err == nil || !strings.Contains(err.Error(), "fp8") || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("%s: %v", c.override, err)
		}
	}
	if err := run("one", 9, "precision=bf16"); err == nil || !strings.Contains(err.Error(), "fp8 there and ") {
		t.Errorf("resumed in bf16: %v", err)
	}
}
