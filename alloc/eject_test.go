package alloc

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Whatever it starts from, an ejector leaves a valid packing, no higher than before.
func TestEjectionPacksEverything(t *testing.T) {
	lowered := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 23))
		l, p, start := randomLeaf(rng, seed%2 == 1)
		before := slices.Clone(start.offsets)
		got := eject(t.Context(), l, start, slices.Max(loads(l.items, l.sections)), rng.Int64N(1_000_000))
		if err := Validate(p, Solution{Offsets: got.offsets, Height: got.height}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if got.height > start.height || !slices.Equal(start.offsets, before) {
			t.Fatalf("seed %d: from height %d to %d", seed, start.height, got.height)
		}
		if got.height < start.height {
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
		items, sections := randomItems(rng, 2+rng.IntN(20), 10)
		perm := make([]int32, len(items))
		for i := range items {
			items[i].align = 1 << rng.IntN(3)
			perm[i] = int32(i)
		}
		e := newEjector(leaf{items, sections, 0}, skyline(items, sections, perm), math.MaxInt64)
		for i := range items {
			e.ousted[i] = float64(rng.IntN(5))
			e.weigh(int32(i))
		}
		e.limit -= e.limit / 4
		for i := range items {
			e.limit = max(e.limit, items[i].size)
		}
		e.evict()
		if len(e.out) == 0 {
			continue
		}
		i := e.heaviest()
		it, before, out := &items[i], slices.Clone(e.offsets), slices.Clone(e.out)
		hits := func(j int, at int64) bool {
			o := &items[j]
			return int32(j) != i && !slices.Contains(out, int32(j)) && o.overlaps(it) && before[j] < at+it.size && at < before[j]+o.size
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
		for at := int64(0); at+it.size <= e.limit; at += it.align {
			least = min(least, cost(at))
		}
		e.insert(i)
		if at := e.offsets[i]; at%it.align != 0 || at+it.size > e.limit || cost(at) != least {
			t.Fatalf("seed %d: at %d for %d, the least is %d", seed, at, cost(at), least)
		}
		for j := range items {
			if hits(j, e.offsets[i]) != (slices.Contains(e.out, int32(j)) && !slices.Contains(out, int32(j))) {
				t.Fatalf("seed %d: item %d is out: %v", seed, j, slices.Contains(e.out, int32(j)))
			}
		}
	}
}
