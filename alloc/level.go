package alloc

import (
	"context"
	"crypto/sha256"
	"math"
	"slices"
)

// Two levels
//
// A training step repeats the same layer many times, and most buffers are
// born and die inside one pass of one layer. MEMO packs one layer, then the
// step with each pass as a single block. Here the passes are detected: items
// that live at most w sections are called short; time is cut where no short item
// is alive, and the short items between two cuts form a group. Groups of equal
// shape (lifetimes relative to the group, sizes, alignments) are packed once. Each
// group then enters the second level as one item that lives as long as the group
// and is as high as its packing.
//
// Example: a kept over [0,6), scratch s over [1,2) and [4,5): w = 1 makes two
// groups of equal shape.
//
// Weakness: a block is a rectangle, so the space above its low moments is wasted;
// and where passes overlap, groups merge. Hence the flat packing is made too, and
// the lower one wins. If blocks as high as their lower bounds would already be too
// high together, nothing is packed.

// Limits of the search for one shape.
const (
	groupNodes = 50_000
	groupItems = 300 // larger groups are not searched
)

// A group is a set of short items that becomes one block.
type group struct {
	members []int32 // positions in the leaf
	problem Problem // the members by themselves, time from 0
	block   item    // size is filled in when the problem is solved
}

// twoLevel packs a leaf in two levels for several w and returns the lowest packing
// below a height, or false. It skips leaves with fixed items or without repetition.
func twoLevel(ctx context.Context, l leaf, below, effort int64) (packing, bool) {
	best, found := packing{height: below}, false
	solved := &Cache{}
	widest := int32(0)
	for i := range l.items {
		if l.items[i].fixed >= 0 {
			return best, false
		}
		widest = max(widest, l.items[i].width())
	}
	for w := int32(1); w < widest; w *= 4 {
		groups, rest := grouped(l.items, w)
		if len(groups) == len(l.items)-len(rest) || !repetitive(groups) {
			continue
		}
		p, ok := assemble(ctx, l, groups, rest, best.height, solved, effort/8)
		if ok && p.height < best.height {
			best, found = p, true
		}
	}
	return best, found
}

// repetitive reports whether there are at least two groups per distinct shape.
func repetitive(groups []group) bool {
	shapes := make(map[[sha256.Size]byte]bool)
	for g := range groups {
		shapes[fingerprint(groups[g].problem, Options{})] = true
	}
	return len(groups) >= 2*len(shapes)
}

// grouped gathers short items into groups and returns the others as rest.
func grouped(items []item, w int32) (groups []group, rest []int32) {
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
		it := &items[i]
		if it.lo >= end {
			groups = append(groups, group{block: item{lo: it.lo, align: 1, fixed: Free, index: int32(len(groups))}})
		}
		end = max(end, it.hi)
		g := &groups[len(groups)-1]
		g.members = append(g.members, i)
		g.block.hi = end
		g.block.align = lcm(g.block.align, it.align)
		g.problem.Buffers = append(g.problem.Buffers, Buffer{
			Lower: int64(it.lo - g.block.lo), Upper: int64(it.hi - g.block.lo), Size: it.size, Align: it.align, Fixed: Free})
	}
	return groups, rest
}

// assemble packs each group, then the groups as blocks among the rest. It reports
// false if that cannot be lower than below.
func assemble(ctx context.Context, l leaf, groups []group, rest []int32, below int64, solved *Cache, effort int64) (packing, bool) {
	inner := make([]Solution, len(groups))
	blocks := make([]item, 0, len(groups)+len(rest))
	for g := range groups {
		if groups[g].block.align > math.MaxInt32 {
			return packing{}, false
		}
		block := groups[g].block
		block.size = LowerBound(groups[g].problem)
		blocks = append(blocks, block)
	}
	for _, i := range rest {
		it := l.items[i]
		it.index = int32(len(blocks))
		blocks = append(blocks, it)
	}
	high := func() bool { return slices.Max(loads(blocks, l.sections)) >= below }
	if high() {
		return packing{}, false
	}
	for g := range groups {
		nodes := int64(groupNodes)
		if len(groups[g].members) > groupItems {
			nodes = 0
		}
		shapes := solved.Len()
		s, err := Pack(ctx, groups[g].problem, Options{Nodes: nodes, Flat: true, Cache: solved})
		if err != nil || ctx.Err() != nil {
			return packing{}, false
		}
		higher := s.Height > blocks[g].size // than its bound
		inner[g], blocks[g].size = s, s.Height
		if higher && solved.Len() > shapes && high() { // checked once per shape
			return packing{}, false
		}
	}
	outer := greedy(ctx, blocks, l.sections, 0, effort)
	p := packing{offsets: make([]int64, len(l.items)), height: outer.height}
	for g := range groups {
		for k, i := range groups[g].members {
			p.offsets[i] = outer.offsets[g] + inner[g].Offsets[k]
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
