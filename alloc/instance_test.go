package alloc

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// restrict numbers sections as compress does.
func TestRestrict(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 43))
		items, _ := randomItems(rng, 1+rng.IntN(12), 1+rng.Int64N(20))
		items = items[rng.IntN(len(items)):]
		var buffers []Buffer
		for i := range items {
			buffers = append(buffers, Buffer{Lower: int64(items[i].lo), Upper: int64(items[i].hi)})
		}
		want, most := compress(buffers)
		if sections := restrict(items); sections != most {
			t.Fatalf("seed %d: %d sections, want %d", seed, sections, most)
		}
		for i := range items {
			if items[i].lo != want[i].lo || items[i].hi != want[i].hi {
				t.Fatalf("seed %d: item %d lives [%d, %d), want [%d, %d)", seed, i, items[i].lo, items[i].hi, want[i].lo, want[i].hi)
			}
		}
	}
}

// In whatever order niches are filled, the packing is the same: here always the
// leftmost of the lowest.
func TestNichesInAnyOrder(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 47))
		l, _, _ := randomLeaf(rng, seed%2 == 0)
		items, sections := l.items, l.sections
		perm := sorted(items, orders[rng.IntN(len(orders))])
		effort := int64(1 << 40)
		got, _ := fillNiches(items, sections, perm, 1<<40, &effort)
		if want := fillLowest(items, sections, perm); !slices.Equal(got.offsets, want) {
			t.Fatalf("seed %d: offsets %v, want %v", seed, got.offsets, want)
		}
	}
}

// fillLowest fills the leftmost of the lowest niches, by looking at every section.
func fillLowest(items []item, sections int32, perm []int32) []int64 {
	line, offsets := make([]int64, sections), slices.Repeat([]int64{-1}, len(items))
	for slices.Contains(offsets, -1) {
		lo := int32(slices.Index(line, slices.Min(line)))
		hi := lo
		for hi < sections && line[hi] == line[lo] {
			hi++
		}
		k := slices.IndexFunc(perm, func(i int32) bool { return offsets[i] < 0 && items[i].lo >= lo && items[i].hi <= hi })
		from, to, top := lo, hi, int64(1<<40)
		if k >= 0 {
			it := &items[perm[k]]
			offsets[perm[k]] = it.alignUp(line[lo])
			from, to, top = it.lo, it.hi, offsets[perm[k]]+it.size
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
