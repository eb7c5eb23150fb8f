package train

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/session"
)

// TestPackedStored: a run with moments in 8 bits goes on from a checkpoint, under another plan, to the bits of a run that was not
// interrupted; its checkpoints have 2 bytes of moments per element and the scales; and its moments can be carried to a run that has
// them in fp32, and back, also where files have another order than operators.
func TestPackedStored(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	packed := strings.Fields(`max_steps=2 save_every=1 optimizer_state=8bit_moments model={"type":"gpt_neox","layers":2,"width":64,"heads":4} tokenizer=bpe-300`)
	with := func(more ...string) []string { return append(slices.Clone(packed), more...) }
	check(t, trainFile(t.Context(), file, with("out="+dir+"/whole")))
	check(t, os.CopyFS(dir+"/again/checkpoint-1", os.DirFS(dir+"/whole/checkpoint-1")))
	check(t, trainFile(t.Context(), file, with("out="+dir+"/again", "plan.state=disk")))
	for _, name := range []string{"model.safetensors", "state/m.safetensors", "state/v.safetensors"} {
		a, err := os.ReadFile(filepath.Join(dir, "whole/checkpoint-2", name))
		b, bad := os.ReadFile(filepath.Join(dir, "again/checkpoint-2", name))
		check(t, errors.Join(err, bad))
		if string(a) != string(b) {
			t.Errorf("%s is another than that of a run that was not interrupted", name)
		}
	}
	from := dir + "/whole/checkpoint-2"
	carry := []string{"carry_optimizer=true", "tokenizer=" + from}
	here, _ := openRun(t, file, with(append(carry, "model="+from, "out="+dir+"/here")...)...)
	defer here.Close()
	wide, _ := openRun(t, file, with(append(carry, "model="+from, "optimizer_state=fp32", "out="+dir+"/wide")...)...)
	defer wide.Close()
	check(t, wide.Train(t.Context(), quiet{}))
	back, _ := openRun(t, file, with(append(carry, "model="+dir+"/wide/checkpoint-2", "out="+dir+"/back")...)...)
	defer back.Close()
	again, _ := openRun(t, file, with(append(carry, "model="+from, "optimizer_state=fp32", "out="+dir+"/wider")...)...)
	defer again.Close()
	blocks := 0
	for i, p := range here.Setup.Graph.Params {
		for _, kind := range optimizer.AdamW.Moments() {
			read := func(r *Run) []float32 {
				values := make([]float32, p.Elems())
				check(t, r.Session.Read(i, kind, values))
				return values
			}
			if !slices.Equal(read(here), read(again)) {
				t.Errorf("%s of %s: in fp32 it is another", kind, p.Name)
			}
			want := read(wide)
			if session.MomentOf(here.Session, i, kind).Packed() {
				blocks++
				ours := slices.Clone(want)
				if p.Reordered() {
					p.FromFile(ours, want)
				}
				kernel.UnpackMoments(kind == optimizer.SecondMoment, ours, kernel.PackMoments(kind == optimizer.SecondMoment, ours))
				if want = ours; p.Reordered() {
					want = make([]float32, len(ours))
					p.ToFile(want, ours)
				}
			}
			if session.MomentOf(here.Session, i, kind).Packed() != (p.Elems() >= graph.PackedLeast) || !slices.Equal(read(back), want) {
				t.Errorf("%s of %s: what was in fp32 is not the nearest in 8 bits", kind, p.Name)
			}
		}
	}
	if blocks < 10 {
		t.Errorf("%d moments are in 8 bits", blocks)
	}
}
