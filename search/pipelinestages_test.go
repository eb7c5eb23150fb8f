package search

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/schedule"
)

// TestCensus: sums over ranges of segments are what counting parameter by
// parameter gives, for tied and for frozen ones, in ranges that overlap.
func TestCensus(t *testing.T) {
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, tied := range []bool{true, false} {
		m, err := family.Known("gpt2")
		check(t, err)
		m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions, m.Tied = 6, 128, 4, 4, 32, 512, 512, 128, tied
		g, err := graph.Build(m, 128, graph.F32)
		check(t, err)
		for i := range g.Params {
			g.Params[i].Frozen = rng.IntN(3) == 0
		}
		c := newCensus(g)
		for range 200 {
			var ranges [][2]int
			for range 1 + rng.IntN(4) {
				lo := rng.IntN(len(g.Segments))
				ranges = append(ranges, [2]int{lo, lo + rng.IntN(len(g.Segments)-lo+1)})
			}
			var want [2]int64
			seen := map[int]bool{}
			for _, r := range ranges {
				for _, seg := range g.Segments[r[0]:r[1]] {
					for _, p := range seg.Params {
						if !seen[p] && g.Params[p].Frozen {
							want[1] += g.Params[p].Elems()
						} else if !seen[p] {
							want[0] += g.Params[p].Elems()
						}
						seen[p] = true
					}
				}
			}
			if trained, frozen := c.count(ranges); [2]int64{trained, frozen} != want {
				t.Fatalf("tied %v, %v: %d trained and %d frozen, counted %v", tied, ranges, trained, frozen, want)
			}
		}
	}
}

// TestPace: what a pacing remembers equals what the schedule's own clock says when asked anew, no bound exceeds
// it, and polishing makes nothing longer.
func TestPace(t *testing.T) {
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	polished := 0
	for _, v := range variants {
		c := &costs{message: 0.3 * rng.Float64()}
		for range 20 {
			c.segments = append(c.segments, schedule.Times{F: rng.Float64(), B: rng.Float64(), W: rng.Float64()})
		}
		sh := &shape{variant: v, depth: 4, replicas: 1, b: 1, micros: 16, costs: c}
		p := &pacing{shape: sh, known: map[string]pace{}}
		split, err := schedule.Balance(sh.total(), 4*v.chunks, sh.micros)
		check(t, err)
		first := append(append([]int{0}, split.Ends[:4*v.chunks-1]...), len(c.segments))
		again := make([]float64, 4*v.chunks)
		for range 3 {
			for range 2 { // the second time from memory
				stages := sh.times(first, again)
				at := p.of(first, again)
				line, err := at.order.Simulate(schedule.Costs{Comm: c.message, WeightMemory: 0.5, Stages: stages})
				check(t, err)
				if at.makespan != line.Makespan || !slices.Equal(at.peaks, line.Peaks) {
					t.Errorf("%s: %v and peaks %v, by the schedule's clock %v and %v", v.name, at.makespan, at.peaks, line.Makespan, line.Peaks)
				}
				if least := p.least(stages); least > at.makespan*(1+1e-9) {
					t.Errorf("%s takes %v, the bound is %v", v.name, at.makespan, least)
				}
			}
			for k := range again {
				again[k] = rng.Float64()
			}
		}
		if v.chunks == 1 {
			continue
		}
		before := p.of(first, nil).makespan
		switch after := p.of(p.polish(first, before), nil).makespan; {
		case after > before:
			t.Errorf("%s: polished from %v to %v", v.name, before, after)
		case after < before:
			polished++
		}
	}
	if polished == 0 {
		t.Error("no division was polished")
	}
}
