package alloc

import (
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// Wheels whose bottoms are all cut at one moment, into strips of one size: only
// pieces further away tell which strips belong together, and careful glueing finds it.
func TestStripsSettleSeams(t *testing.T) {
	worse := 0
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 53))
		n := 2 + rng.IntN(3)
		items := cutWheels(rng, n)
		for _, careful := range []bool{true, false} {
			g := newGluing(items, 4*20, careful)
			g.joinAll(t.Context())
			checkGluing(t, seed, g, len(items))
			switch {
			case careful && len(g.whole) != n:
				t.Errorf("seed %d: %d pieces of %d wheels", seed, len(g.whole), n)
			case len(g.whole) > n:
				worse++
			}
		}
	}
	if worse < 50 {
		t.Errorf("without care more were left in %d cases only: that is too easy", worse)
	}
}

// cutWheels draws n wheels that have no moment in common but that of the cut.
func cutWheels(rng *rand.Rand, n int) (items []parts.Item) {
	const cut = 2 * 20
	var moments [4][]int // lo, end of left, end of centre, hi
	for k := range moments {
		moments[k] = rng.Perm(20 - 1)
	}
	add := func(lo, hi int32, size int64) {
		items = append(items, parts.Item{Lo: lo, Hi: hi, Size: size, Align: 1, Fixed: Free})
	}
	for k := range n {
		at := func(m int) int32 { return int32(20*m + 1 + moments[m][k]) }
		top, centre := 1+rng.Int64N(5), 1+rng.Int64N(5)
		add(at(0), at(1), top+centre)
		add(at(1), at(3), top)
		add(at(1), at(2), centre)
		add(at(0), cut, 1)
		add(cut, at(2), 1)
		add(at(2), at(3), 1+centre)
	}
	return items
}
