package alloc

import (
	"context"
	"math"
	"slices"
)

// Two levels
//
// A training step repeats the same layer many times, and most buffers are
// born and die inside one pass of one layer. MEMO packs one layer, then the
// step with each pass as a single block. Here the passes are found, not told:
// call items that live at most w sections short; where no short item is
// alive, time is cut; the short items between two cuts are a group. Groups of
// equal shape (lifetimes relative to the group, sizes, alignments) are packed
// once. Each group then enters the second level as one item that lives as
// long as the group and is as high as its packing.
//
// Example: keep a over [0,6), scratch s over [1,2) and [4,5): w = 1 makes two
// groups of equal shape.
//
// Weakness: a block is a rectangle, so space over its low moments is lost to
// the others; and where passes overlap the groups grow together. Hence the
// flat packing is made too, and the lower one wins.

// groupNodes is the search allowed for one shape.
const groupNodes = 50_000

// twoLevel packs a leaf in two levels for several w and returns the best.
// Leaves with fixed items are left alone.
func twoLevel(ctx context.Context, l leaf, effort int64) (packing, bool) {
	best, found := packing{height: math.MaxInt64}, false
	shapes := &Cache{}
	widest := int32(0)
	for i := range l.items {
		if l.items[i].fixed >= 0 {
			return best, false
		}
		widest = max(widest, l.items[i].width())
	}
	for w := int32(1); w < widest; w *= 4 {
		groups, rest := grouped(l.items, w)
		if len(groups) < 2 || len(groups) == len(l.items)-len(rest) {
			continue // nothing is gathered
		}
		p, ok := assemble(ctx, l, groups, rest, shapes, effort/8)
		if ok && p.height < best.height {
			best, found = p, true
		}
	}
	return best, found
}

// grouped divides the positions of items into groups of short ones and rest.
func grouped(items []item, w int32) (groups [][]int32, rest []int32) {
	var short []int32
	for i := range items {
		if items[i].width() <= w {
			short = append(short, int32(i))
		} else {
			rest = append(rest, int32(i))
		}
	}
	slices.SortStableFunc(short, func(i, j int32) int { return byLower(&items[i], &items[j]) })
	end := int32(-1)
	for _, i := range short {
		if items[i].lo >= end {
			groups = append(groups, nil)
		}
		g := &groups[len(groups)-1]
		*g = append(*g, i)
		end = max(end, items[i].hi)
	}
	return groups, rest
}

// assemble packs each group, then the groups as blocks among the rest.
func assemble(ctx context.Context, l leaf, groups [][]int32, rest []int32, shapes *Cache, effort int64) (packing, bool) {
	inner := make([][]int64, len(groups))
	var blocks []item
	for g, members := range groups {
		p := Problem{}
		block := item{lo: math.MaxInt32, align: 1, fixed: Free, index: int32(g)}
		for _, i := range members {
			it := &l.items[i]
			block.lo, block.hi = min(block.lo, it.lo), max(block.hi, it.hi)
			block.align = lcm(block.align, it.align)
		}
		for _, i := range members {
			it := &l.items[i]
			p.Buffers = append(p.Buffers, Buffer{Lower: int64(it.lo - block.lo), Upper: int64(it.hi - block.lo), Size: it.size, Align: it.align, Fixed: Free})
		}
		nodes := int64(groupNodes)
		if len(members) > 300 {
			nodes = 0
		}
		s, err := Pack(ctx, p, Options{Nodes: nodes, Flat: true, Cache: shapes})
		if err != nil || block.align > math.MaxInt32 {
			return packing{}, false
		}
		inner[g], block.size = s.Offsets, s.Height
		blocks = append(blocks, block)
	}
	for _, i := range rest {
		it := l.items[i]
		it.index = int32(len(blocks))
		blocks = append(blocks, it)
	}
	outer := greedy(blocks, l.sections, 0, effort)
	p := packing{offsets: make([]int64, len(l.items)), height: outer.height}
	for g, members := range groups {
		for k, i := range members {
			p.offsets[i] = outer.offsets[g] + inner[g][k]
		}
	}
	for k, i := range rest {
		p.offsets[i] = outer.offsets[len(groups)+k]
	}
	return p, true
}

func lcm(a, b int64) int64 {
	if a > math.MaxInt32 || b > math.MaxInt32 {
		return math.MaxInt32 + 1 // beyond what assemble accepts
	}
	return a / gcd(a, b) * b
}
