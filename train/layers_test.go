package train

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestTieLayers: a run whose layers share parameters has checkpoints like any other, with a copy for each layer. At delink_at it
// ends so that it goes on with layers of their own: their first step has the loss of a run that stays tied, and they then differ.
// Wherever it was stopped before or after, and whatever the plans, the bits are the same. It cannot be tied again.
func TestTieLayers(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	run := func(out string, steps int, more ...string) error {
		return trainFile(t.Context(), file, append([]string{"model={type: llama, layers: 4, width: 32, heads: 4, kv_heads: 2}", "tie_layers=2", "save_every=0", "schedule=constant",
			"out=" + filepath.Join(dir, out), fmt.Sprint("max_steps=", steps)}, more...))
	}
	delinks := func(out string, more ...string) {
		t.Helper()
		if err := run(out, 7, append(more, "delink_at=4")...); !errors.Is(err, ErrDelinked) {
			t.Fatalf("at the step of delink_at: %v", err)
		}
	}
	away := []string{"plan.weights=host", "plan.grads=host", "plan.state=disk", "plan.micro_batch=1"}
	delinks("one")
	check(t, run("one", 7, "delink_at=4"))
	check(t, run("two", 2, append(away, "delink_at=4")...))
	delinks("two")
	check(t, run("two", 7, append(away, "delink_at=4")...))
	check(t, run("tied", 7))
	for _, name := range []string{"model.safetensors", "state/m.safetensors", "state/v.safetensors"} {
		if !slices.Equal(read(t, dir+"/one/checkpoint-7", name), read(t, dir+"/two/checkpoint-7", name)) {
			t.Errorf("%s depends on where the run was stopped or on the plan", name)
		}
	}
	one, two, tied := losses(t, dir+"/one/metrics.jsonl"), losses(t, dir+"/two/metrics.jsonl"), losses(t, dir+"/tied/metrics.jsonl")
	if !slices.Equal(one, two) || !slices.Equal(one[:5], tied[:5]) || slices.Equal(one, tied) {
		t.Errorf("losses %v and %v, tied %v", one, two, tied)
	}
	for name, want := range map[string]bool{"one/checkpoint-4": true, "tied/checkpoint-7": true, "one/checkpoint-7": false} {
		if got := layersAlike(t, filepath.Join(dir, name)); got != want {
			t.Errorf("%s: layers of a group are alike: %v", name, got)
		}
	}
	check(t, run("one", 8, "delink_at=20"))
	if layersAlike(t, dir+"/one/checkpoint-8") {
		t.Error("layers are tied again")
	}
	for _, c := range []struct{ says, override string }{
		{"groups of 3", "tie_layers=3"}, {"trained weights", "model=" + dir + "/one/checkpoint-7"}, {"freeze", `freeze=["*norm*"]`}, {"max_time", "max_time=1h"},
		{"plan.sequence", "plan.sequence=2 ranks=2 sequence_length=128"}, {"plan.tensor", "plan.tensor=2 ranks=2"},
	} {
		if err := run("refused", 7, strings.Fields(c.override)...); err == nil || !strings.Contains(err.Error(), "tie_layers") || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("%s: %v", c.override, err)
		}
	}
	if err := run("tied", 8, "tie_layers=4"); err == nil || !strings.Contains(err.Error(), "tie_layers is 2 there and 4 here") {
		t.Errorf("resumed with other groups: %v", err)
	}
}

// layersAlike reports whether layers 0 and 1, and 2 and 3, have the same weights, and checks that others do not.
func layersAlike(t *testing.T, dir string) bool {
	t.Helper()
	set, err := safetensors.OpenFolder(dir)
	check(t, err)
	defer set.Close()
	layer := func(l int) []float32 {
		values := make([]float32, 32*32)
		check(t, set.ReadFloat32(fmt.Sprintf("model.layers.%d.self_attn.q_proj.weight", l), 0, values))
		return values
	}
	if slices.Equal(layer(1), layer(2)) {
		t.Errorf("%s: layers of different groups are alike", dir)
	}
	return slices.Equal(layer(0), layer(1)) && slices.Equal(layer(2), layer(3))
}

// TestDivideMoment: at the delink the ratio of AdamW's moments, by which weights move, stays what it was.
func TestDivideMoment(t *testing.T) {
	m, v, p := []float32{8}, []float32{64}, []float32{3}
	divideMoment(1, 4, m)
	divideMoment(2, 4, v)
	divideMoment(0, 4, p)
	if m[0] != 2 || v[0] != 4 || p[0] != 3 {
		t.Error(m, v, p)
	}
}
