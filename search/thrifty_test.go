package search

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// moving is a candidate whose step takes the given seconds, for some of which a link is busy.
func moving(microBatch int, seconds, link float64) *Candidate {
	p := &program.Program{Instrs: []program.Instr{{Stream: device.Compute}, {Stream: device.HostToDev}}}
	return &Candidate{Plan: &plan.Plan{MicroBatch: microBatch}, Programs: []*program.Program{p}, seconds: seconds,
		spans: [][]device.Span{{{Start: 0, End: seconds}, {Start: 0, End: link}}}}
}

// TestThrifty: between plans that hardly differ in time, what they move decides, and no others change places.
func TestThrifty(t *testing.T) {
	for _, c := range []struct {
		name string
		list []*Candidate
		want int
	}{
		{"the same time, less moved", []*Candidate{moving(4, 1, 0.9), moving(4, 1, 0.1)}, 1},
		{"hardly slower, far less moved", []*Candidate{moving(4, 1, 0.9), moving(4, 1.004, 0.1)}, 1},
		{"hardly slower, hardly less moved", []*Candidate{moving(4, 1, 0.3), moving(4, 1.004, 0.2)}, 0},
		{"slower, nothing moved", []*Candidate{moving(4, 1, 0.9), moving(4, 1.01, 0)}, 0},
		{"other micro-batches", []*Candidate{moving(4, 1, 0.9), moving(8, 1.001, 0)}, 0},
		{"one of many", []*Candidate{moving(4, 1, 0.9), moving(4, 1.001, 0.5), moving(4, 1.002, 0), moving(4, 1.004, 0)}, 2},
	} {
		found, err := preferThrifty(t.Context(), nil, c.list)
		check(t, err)
		rest := slices.Delete(slices.Clone(c.list), c.want, c.want+1)
		if found[0] != c.list[c.want] || !slices.Equal(found[1:], rest) {
			t.Errorf("%s: %d was taken, want %d", c.name, slices.Index(c.list, found[0]), c.want)
		}
	}
}

// TestBestOfKinds: however many of one kind are faster, the best of every other kind is held.
func TestBestOfKinds(t *testing.T) {
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, seed))
	for _, ranks := range []int{1, 2} {
		best := map[string]float64{}
		var found shortlist
		for i := range 200 {
			c := moving(1, 1+rng.Float64()+float64(i%5), 0)
			c.Plan.Ranks, c.Plan.MicroBatches = ranks, i
			c.Kind = string(rune('a' + i%5)) // each kind is slower than the one before it
			if old, ok := best[c.Kind]; !ok || c.seconds < old {
				best[c.Kind] = c.seconds
			}
			found = found.add(c)
		}
		held := map[string]float64{}
		for _, c := range found {
			if held[c.Kind] == 0 {
				held[c.Kind] = c.seconds
			}
		}
		for kind, seconds := range best {
			if held[kind] != seconds {
				t.Errorf("seed %d, %d ranks: the best of kind %s takes %v s, held is %v", seed, ranks, kind, seconds, held[kind])
			}
		}
		if len(found) > 24+5 || !slices.IsSortedFunc(found, func(a, b *Candidate) int { return cmp.Compare(a.seconds, b.seconds) }) {
			t.Errorf("%d are held, or not in order", len(found))
		}
	}
}
