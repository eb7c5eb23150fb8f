package pack

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/alloc/generate"
	"github.com/athanor-llm/athanor/alloc/parts"
)

// Ignoring heights, a chain is the best of all sets of disjoint lifetimes;
// compare with an enumeration.
func TestChainIsBest(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 21))
		items, sections := someItems(rng, 1+rng.IntN(9), 10)
		way := taste{near: 1, tall: rng.Float64(), few: rng.Float64(), brief: rng.Float64(), late: late{tall: 5}}
		c := newCovering(items, parts.NewNiches(sections), parts.Loads(items, sections), 40, []taste{way}, 10)
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
					if set>>j&1 == 1 && items[i].Overlaps(&items[j]) {
						return math.Inf(-1)
					}
				}
				covered := 0.0
				for s := items[i].Lo; s < items[i].Hi; s++ {
					covered += c.price[s]
				}
				bare -= covered
				v += covered*(c.gain[i]+way.tall*float64(items[i].Size)/c.largest) - min(few, covered/2)
			}
			return v - bare
		}
		best, chosen := math.Inf(-1), 0
		for set := range 1 << len(items) {
			best = max(best, value(set))
		}
		for x := c.first[0]; x < sections; x = c.first[items[c.pick[x]].Hi] {
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
		items, sections := someItems(rng, 2+rng.IntN(60), 1+rng.Int64N(40))
		buffers := make([]alloc.Buffer, len(items))
		for i := range items {
			if rng.IntN(3) == 0 {
				items[i].Align = 1 << rng.IntN(4)
			}
			buffers[i] = alloc.Buffer{Lower: int64(items[i].Lo), Upper: int64(items[i].Hi), Size: items[i].Size, Align: items[i].Align, Fixed: alloc.Free}
		}
		load := parts.Loads(items, sections)
		ways := make([]taste, sections/2+1)
		for k := range ways {
			ways[k] = drawTaste(rng)
			ways[k].bend = float64(rng.IntN(3))
		}
		effort := int64(math.MaxInt64)
		p, ok := cover(items, load, load[0], ways, 1, &effort)
		if err := generate.Validate(alloc.Problem{Buffers: buffers}, alloc.Solution{Offsets: p.Offsets, Height: p.Height}); err != nil || !ok {
			t.Fatalf("seed %d: %v", seed, err)
		}
		none := int64(0)
		if _, ok := cover(items, load, load[0], ways, 1, &none); ok {
			t.Fatalf("seed %d: packed without effort", seed)
		}
	}
}

// itemsOf returns buffers as items, without moments that no decision depends on.
func itemsOf(buffers []alloc.Buffer) ([]parts.Item, int32) {
	var items []parts.Item
	for i, b := range buffers {
		items = append(items, parts.Item{Lo: int32(b.Lower), Hi: int32(b.Upper), Size: b.Size, Align: max(b.Align, 1), Fixed: b.Fixed, Index: int32(i)})
	}
	return items, parts.Restrict(items)
}

// someItems returns up to n items that leave no moment unused.
func someItems(rng *rand.Rand, n int, steps int64) ([]parts.Item, int32) {
	var buffers []alloc.Buffer
	for range n {
		lower := rng.Int64N(steps)
		buffers = append(buffers, alloc.Buffer{Lower: lower, Upper: lower + 1 + rng.Int64N(steps), Size: 1 + rng.Int64N(20), Fixed: alloc.Free})
	}
	return itemsOf(buffers)
}

// stacked puts each item on top of those before it.
func stacked(items []parts.Item, sections int32, perm []int32) parts.Packing {
	p, line := parts.Packing{Offsets: make([]int64, len(items))}, parts.NewProfile(sections)
	for _, i := range perm {
		it := &items[i]
		p.Offsets[i] = it.AlignUp(line.Highest(it.Lo, it.Hi))
		line.Raise(it.Lo, it.Hi, p.Offsets[i]+it.Size)
		p.Height = max(p.Height, p.Offsets[i]+it.Size)
	}
	return p
}

// randomLeaf draws a part of 2 to 61 items, aligned or not, the equivalent problem,
// and a packing made in random order.
func randomLeaf(rng *rand.Rand, aligned bool) (l parts.Part, p alloc.Problem, start parts.Packing) {
	items, sections := someItems(rng, 2+rng.IntN(60), 1+rng.Int64N(40))
	perm := make([]int32, len(items))
	for k, i := range rng.Perm(len(items)) {
		it := &items[i]
		if aligned {
			it.Align = 1 << rng.IntN(4)
		}
		perm[k] = int32(i)
	}
	for i := range items {
		it := &items[i]
		p.Buffers = append(p.Buffers, alloc.Buffer{Lower: int64(it.Lo), Upper: int64(it.Hi), Size: it.Size, Align: it.Align, Fixed: alloc.Free})
	}
	return parts.Part{Items: items, Sections: sections}, p, stacked(items, sections, perm)
}
