package session

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/verify"
)

// TestNumericRanks: a NaN on one rank is seen by all ranks in the same step,
// however parameters and layers are divided.
func TestNumericRanks(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
	plans := map[string]func(pl *plan.Plan){
		"pipeline": func(pl *plan.Plan) {
			pl.MicroBatch, pl.MicroBatches = 1, 4
			pl.Defer = false
			pl.Pipeline = &plan.Pipeline{Schedule: "1f1b", Ranks: 2, Slices: 1, Stages: []int{0, len(f.graph.Segments) / 2}}
		},
	}
	for _, shard := range plan.Shardings() {
		plans["shard "+shard] = func(pl *plan.Plan) {
			for i := range pl.Chunks {
				pl.Chunks[i].Shard = shard
			}
		}
	}
	for name, edit := range plans {
		for victim := range 2 {
			t.Run(fmt.Sprint(name, " ", victim), func(t *testing.T) {
				pl := plan.Plain(f.graph, 2)
				pl.Ranks = 2
				edit(pl)
				pl.Cache = pl.CacheNeeded(f.graph)
				s, err := Open(f.graph, cpu.OpenRanks(cpu.Options{Workers: 1}, 2), f.lower(t, pl))
				check(t, err)
				t.Cleanup(func() { s.Close(); CloseAll(s.Devices) })
				check(t, s.Load(f.read))
				f.step(t, s, 1)
				poison(t, s, victim)
				out := f.step(t, s, 2)
				if !math.IsNaN(out.Loss) && !math.IsNaN(out.Norm) {
					t.Errorf("loss %v, norm %v", out.Loss, out.Norm)
				}
				for r := range s.ranks {
					clip := make([]float64, 2)
					check(t, s.ranks[r].engines[0].ReadBuffer("clip", clip))
					if !math.IsNaN(clip[1]) {
						t.Errorf("rank %d sees norm %v", r, clip[1])
					}
				}
			})
		}
	}
}

// poison makes a weight of one rank NaN.
func poison(t *testing.T, s *Session, victim int) {
	t.Helper()
	e := s.ranks[victim].engines[0]
	for i, p := range s.Graph.Params {
		if len(e.Parts(i, optimizer.Weights)) == 0 {
			continue
		}
		buf := make([]float32, p.Elems())
		for k := range buf {
			buf[k] = float32(math.NaN())
		}
		check(t, e.WriteHome(i, optimizer.Weights, 0, buf))
		return
	}
	t.Fatalf("rank %d has no parameters", victim)
}

// TestAgree: ranks with different plans refuse to begin.
func TestAgree(t *testing.T) {
	f := load(t, filepath.Join("../testdata/torch", "gpt2-tiny", "config.json"))
	pl := plan.Plain(f.graph, 2)
	pl.Ranks = 2
	one := f.lower(t, pl)
	pl.Chunks[0].Shard = "state"
	other := f.lower(t, pl)
	mixed := []*program.Program{one[0], other[1]}
	if err := verify.Verify(mixed...); err == nil || !strings.Contains(err.Error(), "rank 1 has plan") {
		t.Errorf("Verify: %v", err)
	}
	if _, err := Open(f.graph, make([]device.Device, 2), mixed); err == nil || !strings.Contains(err.Error(), "rank 1 has plan") {
		t.Errorf("Open: %v", err)
	}
	if err := agree(one); err != nil {
		t.Error(err)
	}
}
