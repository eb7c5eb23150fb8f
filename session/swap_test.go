package session

import (
	"context"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/sim"
)

// deep is the graph of a thin GPT.
func deep(t *testing.T, layers, seq int) *graph.Graph {
	t.Helper()
	m, err := family.Known("gpt2")
	check(t, err)
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions = layers, 16, 2, 2, 8, 64, 64, seq
	g, err := graph.Build(m, seq, graph.F32)
	check(t, err)
	return g
}

// trained runs steps of a plan and returns what it computed, what it lowered
// to, and the device's counters after each step.
func trained(t *testing.T, g *graph.Graph, pl *plan.Plan, steps int) (tr trace, p *program.Program, stats []device.Stats) {
	t.Helper()
	p, err := lower.Lower(context.Background(), g, pl, betas)
	check(t, err)
	d := cpu.New(cpu.Options{DiskPath: filepath.Join(t.TempDir(), "disk")})
	defer d.Close()
	b := StepBench{Graph: g, Programs: []*program.Program{p}, Devices: []device.Device{d}, Sequences: pl.MicroBatch * pl.MicroBatches}
	updates, err := Updates(t.Context(), g, pl, b.Programs, betas)
	check(t, err)
	opened, err := OpenDeferred(g, b.Devices, updates, b.Programs)
	check(t, err)
	s, err := b.stepper(opened)
	check(t, err)
	defer s.Close()
	for range steps {
		m, err := s.Next(context.Background())
		check(t, err)
		tr.losses = append(tr.losses, m.Loss)
		stats = append(stats, d.Stats())
	}
	check(t, s.session.Settle(t.Context()))
	for i, q := range g.Params {
		for _, kind := range optimizer.AdamW.Rule().State() {
			buf := make([]float32, q.Elems())
			check(t, s.session.Engine(0).ReadHome(i, kind, 0, buf))
			tr.state = append(tr.state, buf)
		}
	}
	tr.peak = d.Stats().Peak
	return tr, p, stats
}

// TestSixteenTimesLonger: in the device memory that the plain run takes for one
// length, the planner finds room for sequences 16 times as long, and training on
// them gives the bits that a run with all the memory gives.
func TestSixteenTimesLonger(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const length = 32
	layers := testkit.Count(12, 12, 48)
	small, large := deep(t, layers, length), deep(t, layers, 16*length)
	short, err := lower.Lower(context.Background(), small, plan.Plain(small, 1), betas)
	check(t, err)
	arena := short.Height[device.DeviceTier]
	h, err := hardware.KnownRank("rtx4090", 1)
	check(t, err)
	m := &search.Machine{Capacity: [device.NumTiers]int64{arena, 1 << 30, 0}, Cost: sim.CostFunc(h.Cost)}
	res, err := search.Search(context.Background(), &search.Request{Graph: large, GlobalBatch: 1, Options: betas}, m, nil)
	check(t, err)
	got, p, _ := trained(t, large, res.Best.Plan, 2)
	want, plain, _ := trained(t, large, plan.Plain(large, 1), 2)
	if got.peak != p.Height || got.peak[device.DeviceTier] > arena {
		t.Errorf("touched %v, planned %v, of an arena of %d", got.peak, p.Height, arena)
	}
	if !slices.Equal(got.losses, want.losses) {
		t.Errorf("losses %v, with all the memory %v", got.losses, want.losses)
	}
	for i := range want.state {
		if !slices.Equal(got.state[i], want.state[i]) {
			t.Fatalf("%s differs", large.Params[i/3].Name)
		}
	}
	t.Logf("%d tokens in %d bytes, where the plain run holds %d; it would take %d",
		16*length, got.peak[device.DeviceTier], length, plain.Height[device.DeviceTier])
}

// TestManySteps: memory is a flat line in every tier, and nothing piles up
// outside the arenas.
func TestManySteps(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	g := deep(t, 4, 32)
	pl := plan.Plain(g, 1)
	pl.MicroBatches = 2
	pl.Activations[0] = plan.SwapOf(device.HostTier, 0.5)
	pl.Activations[1] = plan.SwapOf(device.DiskTier, 0.25)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, steps := heap(), testkit.Count(0, 250, 1000)
	_, p, stats := trained(t, g, pl, steps)
	for n, s := range stats {
		if s.Peak != p.Height {
			t.Fatalf("after step %d the peaks are %v, planned %v", n+1, s.Peak, p.Height)
		}
		for from := range s.Moved {
			for to, bytes := range s.Moved[from] {
				if bytes != int64(n+1)*stats[0].Moved[from][to] {
					t.Fatalf("after step %d, %d bytes went from %v to %v, in the first %d", n+1, bytes, from, to, stats[0].Moved[from][to])
				}
			}
		}
	}
	if after := heap(); after > before+1<<18+uint64(steps)<<10 { // counters of each step are kept here
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
}
