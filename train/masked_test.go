package train

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/prune"
)

// pruned makes, of the run's own model after a few steps, a folder with sparse weights.
func pruned(t *testing.T, dir, file string) (to string) {
	t.Helper()
	check(t, trainFile(t.Context(), file, []string{"max_steps=4", "save_every=0", "out=" + dir + "/dense"}))
	f, err := folder.Open(dir + "/dense/checkpoint-4")
	check(t, err)
	defer f.Close()
	row := make([]int32, 33)
	for i := range row {
		row[i] = int32(i * i % f.Model.Vocab)
	}
	to = dir + "/sparse"
	check(t, f.Prune(t.Context(), to, folder.Pruning{Pattern: prune.Pattern{Keep: 2, Of: 4}, Rows: [][]int32{row}, Layer: func(folder.PrunedLayer) {}, Progress: func(string, int64, int64) {}}))
	return to
}

// TestKeepMask: a sparse folder is trained with its zeros kept: those of its checkpoint are those of the folder. The run can be stopped
// and goes on under another plan, also one that stores no zeros, with the same bits, and with the same key only. Without the key zeros do not stay.
func TestKeepMask(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	from := pruned(t, dir, file)
	run := func(out string, steps int, more ...string) error {
		return trainFile(t.Context(), file, append([]string{"model=" + from, "save_every=0", "schedule=constant", "out=" + filepath.Join(dir, out), fmt.Sprint("max_steps=", steps)}, more...))
	}
	check(t, run("one", 6, "keep_mask=true"))
	check(t, run("two", 3, "keep_mask=true"))
	check(t, run("two", 6, "keep_mask=true", "plan.weights=host", "plan.grads=host", "plan.state=disk", "plan.micro_batch=1"))
	compact := "plan=" + changedPlan(t, dir, file, "keep_mask=true model="+from, "compact", makeCompact)
	check(t, run("three", 2, "keep_mask=true", compact))
	check(t, run("three", 4, "keep_mask=true"))
	check(t, run("three", 6, "keep_mask=true", compact))
	check(t, run("loose", 6))
	one := filepath.Join(dir, "one/checkpoint-6")
	for _, name := range []string{"model.safetensors", "state/m.safetensors", "state/v.safetensors"} {
		for _, other := range []string{"two", "three"} {
			if !slices.Equal(read(t, one, name), read(t, filepath.Join(dir, other, "checkpoint-6"), name)) {
				t.Errorf("%s of %s depends on where the run was stopped and on the plan", name, other)
			}
		}
	}
	if err := run("four", 1, compact); err == nil || !strings.Contains(err.Error(), "no parameter of it is known to have zeros that stay") {
		t.Errorf("a plan that stores no zeros, of a run that does not keep them: %v", err)
	}
	zeros := func(dir string) (at []string) {
		set, err := safetensors.OpenFolder(dir)
		check(t, err)
		defer set.Close()
		for _, info := range set.Tensors() {
			values := make([]float32, info.Elements())
			check(t, set.ReadFloat32(info.Name, 0, values))
			for i, v := range values {
				if v == 0 && strings.Contains(info.Name, "_proj.") {
					at = append(at, fmt.Sprint(info.Name, i))
				}
			}
		}
		slices.Sort(at)
		return at
	}
	if want, kept := zeros(from), zeros(one); !slices.Equal(kept, want) || len(want) == 0 {
		t.Errorf("%d zeros became %d, or others", len(want), len(kept))
	}
	if n := len(zeros(filepath.Join(dir, "loose/checkpoint-6"))); n > 10 {
		t.Errorf("without keep_mask %d zeros stay", n)
	}
	if err := run("one", 7); err == nil || !strings.Contains(err.Error(), "keep_mask is true there and false here") {
		t.Errorf("resumed without keep_mask: %v", err)
	}
	for _, c := range []struct{ says, override string }{
		{"random weights", "model={type: llama, layers: 1, width: 32, heads: 4}"}, {"with lora", "lora={rank: 4}"},
		{"no weight of the layers", "model=" + dir + "/dense/checkpoint-4"}, {"no matrix of the layers", "freeze=[model.layers.*]"},
	} {
		err := run("refused", 1, "keep_mask=true", c.override)
		if err == nil || !strings.Contains(err.Error(), "keep_mask") || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("%s: %v", c.override, err)
		}
	}
	_, err := os.Stat(filepath.Join(dir, "refused", "checkpoint-1"))
	if err == nil {
		t.Error("a refused run has trained")
	}
}
