package exec_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/null"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
)

// TestVirtualPlans is L4 for the programs of plans: every division of the
// states over 4 ranks and pipelines of all named schedules on 8, priced like a machine
// that was not measured. Rings pass on as many bytes as are received.
func TestVirtualPlans(t *testing.T) {
	m, err := family.Known("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions, m.Tied = 14, 32, 2, 2, 16, 64, 128, 16, false
	g, err := graph.Build(m, m.MaxPositions, graph.F32)
	if err != nil {
		t.Fatal(err)
	}
	h, err := hardware.KnownRank("a100-80", 1)
	if err != nil {
		t.Fatal(err)
	}
	plans := map[string]*plan.Plan{}
	for _, shard := range plan.Shardings() {
		pl := plan.Plain(g, 2)
		pl.Ranks = 4
		for i := range pl.Chunks {
			pl.Chunks[i].Shard = shard
		}
		pl.Cache = pl.CacheNeeded(g)
		plans["shard "+fmt.Sprint(shard)] = pl
	}
	long := *m
	long.MaxPositions = 128
	part, err := graph.BuildPart(&long, 128, 2, graph.F32, nil)
	if err != nil {
		t.Fatal(err)
	}
	plans["shared sequences"] = plan.Plain(part, 1)
	plans["shared sequences"].Ranks = 4
	slab, err := graph.BuildSlab(m, m.MaxPositions, 2, graph.F32, nil)
	if err != nil {
		t.Fatal(err)
	}
	plans["shared matrices"] = plan.Plain(slab, 1)
	plans["shared matrices"].Ranks = 4
	const ranks, micros = 8, 16
	for _, name := range schedule.Names() {
		s, err := schedule.Generate(name, schedule.Request{Ranks: ranks, Micros: micros, Costs: schedule.DefaultCosts()})
		if err != nil {
			t.Fatal(err)
		}
		pl := plan.Plain(g, 1)
		pl.MicroBatches, pl.Ranks = micros, ranks
		pl.Pipeline = &plan.Pipeline{Schedule: name, Ranks: ranks, Slices: s.Slices}
		for k := range s.Stages() {
			pl.Pipeline.Stages = append(pl.Pipeline.Stages, k*len(g.Segments)/s.Stages())
		}
		plans[name] = pl
	}
	for _, name := range testkit.Sample(slices.Sorted(maps.Keys(plans)), 2, 7) {
		pl, g := plans[name], g
		if pl.Sequence > 1 {
			g = part
		}
		if pl.Tensor > 1 {
			g = slab
		}
		t.Run(name, func(t *testing.T) {
			var programs []*program.Program
			for rank := range pl.Ranks {
				p, err := lower.Lower(t.Context(), g, pl, lower.Options{Rank: rank, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1, Capacity: program.NoLimits})
				if err != nil {
					t.Fatal(err)
				}
				programs = append(programs, p)
			}
			want, err := simulateBy(programs, h)
			if err != nil {
				t.Fatal(err)
			}
			g, _ := newGroup(t, programs, onNull(t, pl.Ranks, func(int) null.Cost { return h.Cost }))
			if _, err := g.Step(t.Context()); err != nil {
				t.Fatal(err)
			}
			got, err := g.Timelines()
			if err != nil {
				t.Fatal(err)
			}
			var rings, received float64
			for k, p := range programs {
				if !slices.Equal(got[k].Spans, want[k].Spans) {
					t.Errorf("rank %d: null device %v, simulation %v", k, got[k].Makespan, want[k].Makespan)
				}
				received += float64(want[k].Network)
				for i := range p.Instrs {
					if c := p.Call(i); c.Op.Info().Between && c.Op != graph.Recv {
						bytes, _ := device.Ring(&c)
						rings += bytes
					}
				}
			}
			if math.Abs(rings-received) > 1e-9*received || received == 0 {
				t.Errorf("%v bytes are received, rings pass on %v", received, rings)
			}
			t.Logf("%.1f us, %.0f bytes received", 1e6*want[0].Makespan, received)
		})
	}
}
