package train

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
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
	check(t, run("timed", 2, "max_time=1h"))
	for _, c := range []struct{ says, override string }{
		{"groups of 3", "tie_layers=3"}, {"trained weights", "model=" + dir + "/one/checkpoint-7"}, {"freeze", `freeze=["*norm*"]`}, {"max_time", "max_time=1h delink_at=4"},
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

// TestDelinkAuto: losses choose the step at which layers get parameters of their own. A run that goes on from a checkpoint within a window,
// under another plan, chooses the same step and has the same bits, and the run says why.
func TestDelinkAuto(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	run := func(out string, more ...string) error {
		return trainFile(t.Context(), file, append([]string{"model={type: llama, layers: 4, width: 32, heads: 4, kv_heads: 2}", "tie_layers=2", "delink_at=auto", "save_every=3", "keep_checkpoints=20",
			"schedule=constant", "learning_rate=1e-2", "max_steps=40", "out=" + filepath.Join(dir, out)}, more...))
	}
	if err := run("one"); !errors.Is(err, ErrDelinked) {
		t.Fatal(err)
	}
	check(t, os.CopyFS(dir+"/two", os.DirFS(dir+"/one")))
	check(t, run("one"))
	s := settled(t, file, "out="+dir+"/one", "model.layers=4", "tie_layers=2", "delink_at=auto")
	at := s.Begun.Delink
	if at < leastTied*2 || at > mostTied*2 || s.Tied != 0 { // windows have two steps
		t.Fatalf("layers have parameters of their own after step %d, and are tied by %d", at, s.Tied)
	}
	written, err := config.Load(dir+"/one/config.yaml", nil)
	check(t, err)
	if written.DelinkAt != config.AutoDelink {
		t.Errorf("the run's configuration has delink_at %d", written.DelinkAt)
	}
	for k := 6; k <= at; k += 3 {
		check(t, os.RemoveAll(fmt.Sprintf("%s/two/checkpoint-%d", dir, k)))
	}
	check(t, os.RemoveAll(fmt.Sprintf("%s/two/checkpoint-%d", dir, at)))
	away := []string{"plan.weights=host", "plan.state=disk", "plan.micro_batch=1"}
	if err := run("two", away...); !errors.Is(err, ErrDelinked) {
		t.Fatal(err)
	}
	check(t, run("two", away...))
	for _, name := range []string{fmt.Sprintf("checkpoint-%d/model.safetensors", at), "checkpoint-40/model.safetensors", "checkpoint-40/state/v.safetensors"} {
		if !slices.Equal(read(t, dir+"/one", name), read(t, dir+"/two", name)) {
			t.Errorf("%s depends on where the run was stopped or on the plan", name)
		}
	}
	if !layersAlike(t, fmt.Sprintf("%s/one/checkpoint-%d", dir, at)) || layersAlike(t, dir+"/one/checkpoint-40") {
		t.Error("layers are not tied until then, or still are")
	}
}

// TestTying: layers are tied as long as the loss falls fast, at least three windows and at most six; losses that are not finite do not
// count, and nothing is decided twice, nor for runs whose layers are not tied or that name a step.
func TestTying(t *testing.T) {
	auto := &job.Spec{Tied: 2}
	auto.MaxSteps, auto.DelinkAt = 80, config.AutoDelink
	for _, c := range []struct {
		means []float64 // of windows of four steps
		at    int
	}{
		{[]float64{7, 6, 5.7, 5}, 12},               // 0.3 of 1
		{[]float64{7, 6, 5.5, 5.3, 1}, 16},          // 0.5, then 0.2
		{[]float64{7, 6, 5, 4, 3, 2, 1, 0}, 24},     // always as fast
		{[]float64{7, 7.5, 7, 6.9, 6.8}, 16},        // a rise is no fall: 0.5 is the first, and 0.1 slow
		{[]float64{7, 7.5, 8, 1}, 12},               // no fall at all
		{[]float64{7, 6.9, 6.5, 6.1, 5.9, 5.8}, 24}, // it falls fastest later: 0.2 of 0.4, then 0.1
	} {
		var s tying
		step := 0
		for _, mean := range c.means {
			for k := range 4 {
				step++
				why := s.add(auto, step, mean+float64(k%2*2-1))
				if (why != "") != (step == c.at) || why != "" && s.until(auto) != c.at {
					t.Errorf("%v: at step %d it says %q and ends at %d, want %d", c.means, step, why, s.until(auto), c.at)
				}
				s.add(auto, step, math.NaN())
				if err := s.check(step); err != nil {
					t.Error(err)
				}
			}
		}
	}
	for _, spec := range []*job.Spec{{}, {Tied: 2}} {
		var s tying
		spec.MaxSteps, spec.DelinkAt = 20, config.AutoDelink+spec.Tied
		for step := range 20 {
			if s.add(spec, step+1, 5) != "" || s.Window > 0 {
				t.Errorf("tied by %d, at %d: %+v", spec.Tied, spec.DelinkAt, s)
			}
		}
	}
	for _, s := range []tying{{Window: -1}, {Window: 2, Count: 2}, {At: 9}, {Window: 4, Means: make([]float64, 3)}} {
		if err := s.check(8); err == nil || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("%+v: %v", s, err)
		}
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
