package pack

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/alloc/generate"
	"github.com/athanor-llm/athanor/alloc/parts"
)

// Whatever the limit and the alignments, a tide makes a valid packing, no higher than
// the one it started from, with only missed items above the limit.
func TestTidePacksEverything(t *testing.T) {
	var lowered [2]int // by tides, and by drifts
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 31))
		l, p, start := randomLeaf(rng, seed%2 == 1)
		bound := slices.Max(parts.Loads(l.Items, l.Sections))
		td := newTide(l)
		if seed%3 > 0 {
			td.setDrift(drift{drawLogUniform(rng, 0.01, 100), drawLogUniform(rng, 0.1, 10), drawLogUniform(rng, 0.01, 10)})
		}
		td.limit, td.effort = bound/2+rng.Int64N(bound), math.MaxInt64
		got, ok := td.run(t.Context())
		if err := generate.Validate(p, alloc.Solution{Offsets: got.Offsets, Height: got.Height}); err != nil || !ok {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for i := range l.Items {
			if above := got.Offsets[i]+l.Items[i].Size > td.limit; above != slices.Contains(td.missed, int32(i)) {
				t.Fatalf("seed %d: item %d is above the limit: %v", seed, i, above)
			}
		}
		before := slices.Clone(start.Offsets)
		lower, target := lowerByTide, bound
		if seed%2 == 1 {
			lower, target = lowerByDrifts, (bound+start.Height)/2
		}
		q := lower(t.Context(), l, start, target, rng.Int64N(1_000_000))
		if err := generate.Validate(p, alloc.Solution{Offsets: q.Offsets, Height: q.Height}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if q.Height > start.Height || !slices.Equal(start.Offsets, before) {
			t.Fatalf("seed %d: from height %d to %d", seed, start.Height, q.Height)
		}
		if q.Height < start.Height {
			lowered[seed%2]++
		}
	}
	if min(lowered[0], lowered[1]) < 75 {
		t.Errorf("only %d of 300 packings were lowered", lowered)
	}
}

// When the limit is the load at the peak, no item alive there is missed and no byte
// is wasted.
func TestTideFillsThePeak(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 32))
		items, sections := someItems(rng, 2+rng.IntN(60), 1+rng.Int64N(40))
		load := parts.Loads(items, sections)
		td := newTide(parts.Part{Items: items, Sections: sections})
		td.limit, td.effort = slices.Max(load), math.MaxInt64
		if load[td.peak] != td.limit {
			t.Fatalf("seed %d: the peak is at %d of %v", seed, td.peak, load)
		}
		got, _ := td.run(t.Context())
		for i := range items {
			if it := &items[i]; it.Lo <= td.peak && td.peak < it.Hi && got.Offsets[i]+it.Size > td.limit {
				t.Fatalf("seed %d: item %d was missed", seed, i)
			}
		}
	}
}
