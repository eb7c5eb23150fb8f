package alloc

import (
	"context"
	"crypto/sha256"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
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
	members []int32    // positions in the leaf
	problem Problem    // the members by themselves, time from 0
	block   parts.Item // size is filled in when the problem is solved
}

// twoLevel packs a leaf in two levels for several w and returns the lowest packing
// below a height, or false. It skips leaves with fixed items or without repetition.
func twoLevel(ctx context.Context, l parts.Part, below, effort int64) (parts.Packing, bool) {
	best, found := parts.Packing{Height: below}, false
	solved := &Cache{}
	widest := int32(0)
	for i := range l.Items {
		if l.Items[i].Fixed >= 0 {
			return best, false
		}
		widest = max(widest, l.Items[i].Width())
	}
	for w := int32(1); w < widest; w *= 4 {
		groups, rest := grouped(l.Items, w)
		if len(groups) == len(l.Items)-len(rest) || !repetitive(groups) {
			continue
		}
		p, ok := assemble(ctx, l, groups, rest, best.Height, solved, effort/8)
		if ok && p.Height < best.Height {
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
func grouped(items []parts.Item, w int32) (groups []group, rest []int32) {
	var short []int32
	for i := range items {
		if items[i].Width() <= w {
			short = append(short, int32(i))
		} else {
			rest = append(rest, int32(i))
		}
	}
	slices.SortStableFunc(short, func(i, j int32) int { return byLower(&items[i], &items[j]) })
	end := int32(-1)
	for _, i := range short {
		it := &items[i]
		if it.Lo >= end {
			groups = append(groups, group{block: parts.Item{Lo: it.Lo, Align: 1, Fixed: Free, Index: int32(len(groups))}})
		}
		end = max(end, it.Hi)
		g := &groups[len(groups)-1]
		g.members = append(g.members, i)
		g.block.Hi = end
		g.block.Align = lcm(g.block.Align, it.Align)
		g.problem.Buffers = append(g.problem.Buffers, Buffer{
			Lower: int64(it.Lo - g.block.Lo), Upper: int64(it.Hi - g.block.Lo), Size: it.Size, Align: it.Align, Fixed: Free})
	}
	return groups, rest
}

// assemble packs each group, then the groups as blocks among the rest. It reports
// false if that cannot be lower than below.
func assemble(ctx context.Context, l parts.Part, groups []group, rest []int32, below int64, solved *Cache, effort int64) (parts.Packing, bool) {
	inner := make([]Solution, len(groups))
	blocks := make([]parts.Item, 0, len(groups)+len(rest))
	for g := range groups {
		if groups[g].block.Align > math.MaxInt32 {
			return parts.Packing{}, false
		}
		block := groups[g].block
		block.Size = LowerBound(groups[g].problem)
		blocks = append(blocks, block)
	}
	for _, i := range rest {
		it := l.Items[i]
		it.Index = int32(len(blocks))
		blocks = append(blocks, it)
	}
	high := func() bool { return slices.Max(parts.Loads(blocks, l.Sections)) >= below }
	if high() {
		return parts.Packing{}, false
	}
	for g := range groups {
		nodes := int64(groupNodes)
		if len(groups[g].members) > groupItems {
			nodes = 0
		}
		shapes := solved.Len()
		s, err := Pack(ctx, groups[g].problem, Options{Nodes: nodes, Flat: true, Cache: solved})
		if err != nil || ctx.Err() != nil {
			return parts.Packing{}, false
		}
		higher := s.Height > blocks[g].Size // than its bound
		inner[g], blocks[g].Size = s, s.Height
		if higher && solved.Len() > shapes && high() { // checked once per shape
			return parts.Packing{}, false
		}
	}
	outer := greedy(ctx, blocks, l.Sections, 0, effort)
	p := parts.Packing{Offsets: make([]int64, len(l.Items)), Height: outer.Height}
	for g := range groups {
		for k, i := range groups[g].members {
			p.Offsets[i] = outer.Offsets[g] + inner[g].Offsets[k]
		}
	}
	for k, i := range rest {
		p.Offsets[i] = outer.Offsets[len(groups)+k]
	}
	return p, true
}

func lcm(a, b int64) int64 {
	if a > math.MaxInt32 || b > math.MaxInt32 {
		return math.MaxInt32 + 1 // beyond what assemble accepts
	}
	return a / parts.GCD(a, b) * b
}
