package alloc

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Ignoring heights, a chain is the best of all sets of disjoint lifetimes;
// compare with an enumeration.
func TestChainIsBest(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 21))
		items, sections := randomItems(rng, 1+rng.IntN(9), 10)
		way := taste{near: 1, tall: rng.Float64(), few: rng.Float64(), brief: rng.Float64(), late: late{tall: 5}}
		c := newCovering(items, newNiches(sections), loads(items, sections), 40, []taste{way}, 10)
		c.chain(0, sections)
		total := 0.0
		for _, p := range c.price {
			total += p
		}
		n := float64(sections)
		few := way.few * min(total/n, 1) * min(c.width, n)
		value := func(set int) float64 {
			bare, v := total, 0.0
			for i := range items {
				if set>>i&1 == 0 {
					continue
				}
				for j := range items[:i] {
					if set>>j&1 == 1 && items[i].overlaps(&items[j]) {
						return math.Inf(-1)
					}
				}
				covered := 0.0
				for s := items[i].lo; s < items[i].hi; s++ {
					covered += c.price[s]
				}
				bare -= covered
				v += covered*(c.gain[i]+way.tall*float64(items[i].size)/c.largest) - min(few, covered/2)
			}
			return v - bare
		}
		best, chosen := math.Inf(-1), 0
		for set := range 1 << len(items) {
			best = max(best, value(set))
		}
		for x := c.first[0]; x < sections; x = c.first[items[c.pick[x]].hi] {
			chosen |= 1 << c.pick[x]
		}
		if got := value(chosen); got < best-1e-9*total || math.Abs(c.value[0]-best) > 1e-9*total {
			t.Fatalf("seed %d: chain %b is worth %v (said %v), the best %v", seed, chosen, got, c.value[0], best)
		}
	}
}

// Whatever the tastes, a cover is a valid packing; without effort it gives up.
func TestCoverPacksEverything(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 22))
		items, sections := randomItems(rng, 2+rng.IntN(60), 1+rng.Int64N(40))
		buffers := make([]Buffer, len(items))
		for i := range items {
			if rng.IntN(3) == 0 {
				items[i].align = 1 << rng.IntN(4)
			}
			buffers[i] = Buffer{Lower: int64(items[i].lo), Upper: int64(items[i].hi), Size: items[i].size, Align: items[i].align, Fixed: Free}
		}
		load := loads(items, sections)
		ways := make([]taste, sections/2+1)
		for k := range ways {
			ways[k] = draw(rng)
			ways[k].bend = float64(rng.IntN(3))
		}
		effort := int64(math.MaxInt64)
		p, ok := cover(items, load, load[0], ways, 1, &effort)
		if err := Validate(Problem{Buffers: buffers}, Solution{Offsets: p.offsets, Height: p.height}); err != nil || !ok {
			t.Fatalf("seed %d: %v", seed, err)
		}
		none := int64(0)
		if _, ok := cover(items, load, load[0], ways, 1, &none); ok {
			t.Fatalf("seed %d: packed without effort", seed)
		}
	}
}

// randomItems returns up to n items that leave no moment unused, compressed.
func randomItems(rng *rand.Rand, n int, steps int64) ([]item, int32) {
	var buffers []Buffer
	for range n {
		lower := rng.Int64N(steps)
		buffers = append(buffers, Buffer{Lower: lower, Upper: lower + 1 + rng.Int64N(steps), Size: 1 + rng.Int64N(20), Fixed: Free})
	}
	return compress(buffers)
}

// randomLeaf draws a leaf of 2 to 61 items, aligned or not, the equivalent problem,
// and a packing made in random order.
func randomLeaf(rng *rand.Rand, aligned bool) (l leaf, p Problem, start packing) {
	items, sections := randomItems(rng, 2+rng.IntN(60), 1+rng.Int64N(40))
	perm := make([]int32, len(items))
	for k, i := range rng.Perm(len(items)) {
		it := &items[i]
		if aligned {
			it.align = 1 << rng.IntN(4)
		}
		perm[k] = int32(i)
	}
	for i := range items {
		it := &items[i]
		p.Buffers = append(p.Buffers, Buffer{Lower: int64(it.lo), Upper: int64(it.hi), Size: it.size, Align: it.align, Fixed: Free})
	}
	return leaf{items, sections, 0}, p, skyline(items, sections, perm)
}
