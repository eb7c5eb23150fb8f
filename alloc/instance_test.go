package alloc

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/alloc/parts"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// restrict numbers sections as sorting all times does.
func TestRestrict(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 43))
		items, _ := randomItems(rng, 1+rng.IntN(12), 1+rng.Int64N(20))
		items = items[rng.IntN(len(items)):]
		var buffers []Buffer
		start := rng.Int64N(1000) - 500
		for i := range items {
			buffers = append(buffers, Buffer{Lower: start + int64(items[i].Lo), Upper: start + int64(items[i].Hi)})
		}
		want := make([]parts.Item, len(buffers))
		most := sortTimes(buffers, want)
		if got, sections := compress(buffers); sections != most || !slices.EqualFunc(got, want, alike) {
			t.Fatalf("seed %d: %d sections of %v, want %d of %v", seed, sections, got, most, want)
		}
		if sections := parts.Restrict(items); sections != most {
			t.Fatalf("seed %d: %d sections, want %d", seed, sections, most)
		}
		for i := range items {
			if items[i].Lo != want[i].Lo || items[i].Hi != want[i].Hi {
				t.Fatalf("seed %d: item %d lives [%d, %d), want [%d, %d)", seed, i, items[i].Lo, items[i].Hi, want[i].Lo, want[i].Hi)
			}
		}
	}
}

// alike reports whether two items live in the same sections.
func alike(a, b parts.Item) bool { return a.Lo == b.Lo && a.Hi == b.Hi }

// In whatever order niches are filled, the packing is the same: here always the
// leftmost of the lowest.
func TestNichesInAnyOrder(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 47))
		items, sections := randomItems(rng, 2+rng.IntN(60), 1+rng.Int64N(40))
		for i := range items {
			items[i].Align = 1 << (uint64(rng.IntN(4)) * (seed % 2))
		}
		perm := sorted(items, orders[rng.IntN(len(orders))])
		effort := int64(1 << 40)
		got, _ := fillNiches(items, newUnplaced(items, sections), perm, 1<<40, &effort)
		if want := fillLowest(items, sections, perm); !slices.Equal(got.Offsets, want) {
			t.Fatalf("seed %d: offsets %v, want %v", seed, got.Offsets, want)
		}
	}
}

// fillLowest fills the leftmost of the lowest niches, by looking at every section.
func fillLowest(items []parts.Item, sections int32, perm []int32) []int64 {
	line, offsets := make([]int64, sections), slices.Repeat([]int64{-1}, len(items))
	for slices.Contains(offsets, -1) {
		lo := int32(slices.Index(line, slices.Min(line)))
		hi := lo
		for hi < sections && line[hi] == line[lo] {
			hi++
		}
		k := slices.IndexFunc(perm, func(i int32) bool { return offsets[i] < 0 && items[i].Lo >= lo && items[i].Hi <= hi })
		from, to, top := lo, hi, int64(1<<40)
		if k >= 0 {
			it := &items[perm[k]]
			offsets[perm[k]] = it.AlignUp(line[lo])
			from, to, top = it.Lo, it.Hi, offsets[perm[k]]+it.Size
		} else {
			if lo > 0 {
				top = min(top, line[lo-1])
			}
			if hi < sections {
				top = min(top, line[hi])
			}
		}
		for s := from; s < to; s++ {
			line[s] = top
		}
	}
	return offsets
}

// TestAdvance: moving items forward gives the order that a stable sort by place gives.
func TestAdvance(t *testing.T) {
	rng := testkit.Rand(t)
	for range 200 {
		n := rng.IntN(40)
		perm, place := make([]int32, n), make([]int64, n)
		for r, i := range rng.Perm(n) {
			perm[r], place[i] = int32(i), int64(r)
		}
		for range 5 {
			want, step := slices.Clone(perm), int64(rng.IntN(4))
			later, moves := slices.Clone(place), make([]bool, n)
			for i := range n {
				if moves[i] = rng.IntN(3) == 0; moves[i] {
					later[i] -= step
				}
			}
			slices.SortStableFunc(want, func(i, j int32) int { return cmp.Compare(later[i], later[j]) })
			advance(perm, place, step, func(i int32) bool { return moves[i] })
			if !slices.Equal(perm, want) || !slices.Equal(place, later) {
				t.Fatalf("advanced to %v at %v, want %v at %v", perm, place, want, later)
			}
		}
	}
}
