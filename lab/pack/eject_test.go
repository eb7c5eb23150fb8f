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

// Whatever it starts from, an ejector leaves a valid packing, no higher than before.
func TestEjectionPacksEverything(t *testing.T) {
	lowered := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 23))
		l, p, start := randomLeaf(rng, seed%2 == 1)
		before := slices.Clone(start.Offsets)
		got := lowerByEjection(t.Context(), l, start, slices.Max(parts.Loads(l.Items, l.Sections)), rng.Int64N(1_000_000))
		if err := generate.Validate(p, alloc.Solution{Offsets: got.Offsets, Height: got.Height}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if got.Height > start.Height || !slices.Equal(start.Offsets, before) {
			t.Fatalf("seed %d: from height %d to %d", seed, start.Height, got.Height)
		}
		if got.Height < start.Height {
			lowered++
		}
	}
	if lowered < 200 {
		t.Errorf("only %d of 300 packings were lowered", lowered)
	}
}

// An item goes where it ejects the least weight: compare with all offsets.
func TestInsertionIsBest(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 24))
		items, sections := someItems(rng, 2+rng.IntN(20), 10)
		perm := make([]int32, len(items))
		for i := range items {
			items[i].Align = 1 << rng.IntN(3)
			perm[i] = int32(i)
		}
		e := newEjector(parts.Part{Items: items, Sections: sections}, stacked(items, sections, perm), math.MaxInt64)
		for i := range items {
			e.ousted[i] = float64(rng.IntN(5))
			e.weigh(int32(i))
		}
		e.limit -= e.limit / 4
		for i := range items {
			e.limit = max(e.limit, items[i].Size)
		}
		e.evict()
		if len(e.out) == 0 {
			continue
		}
		i := e.heaviest()
		it, before, out := &items[i], slices.Clone(e.offsets), slices.Clone(e.out)
		hits := func(j int, at int64) bool {
			o := &items[j]
			return int32(j) != i && !slices.Contains(out, int32(j)) && o.Overlaps(it) && before[j] < at+it.Size && at < before[j]+o.Size
		}
		weights := slices.Clone(e.weight) // those of the ejected grow
		cost := func(at int64) (sum int64) {
			for j := range items {
				if hits(j, at) {
					sum += weights[j]
				}
			}
			return sum
		}
		least := int64(math.MaxInt64)
		for at := int64(0); at+it.Size <= e.limit; at += it.Align {
			least = min(least, cost(at))
		}
		e.insert(i)
		if at := e.offsets[i]; at%it.Align != 0 || at+it.Size > e.limit || cost(at) != least {
			t.Fatalf("seed %d: at %d for %d, the least is %d", seed, at, cost(at), least)
		}
		for j := range items {
			if hits(j, e.offsets[i]) != (slices.Contains(e.out, int32(j)) && !slices.Contains(out, int32(j))) {
				t.Fatalf("seed %d: item %d is out: %v", seed, j, slices.Contains(e.out, int32(j)))
			}
		}
	}
}
