package alloc

import (
	"cmp"
	"slices"
)

// Reduction
//
// Two observations cut a problem into independent leaves without giving up
// the optimum:
//
//	split   at a moment that no lifetime spans, left and right do not interact.
//	peel    an item alive during its whole part may lie at the bottom: whatever
//	        lay below it can be shifted above it. What remains starts on top of
//	        it and often splits again.
//
// Example: weights live through the whole step; peeled off, the step falls
// apart between the last backward pass and the optimizer.
//
// Peeling needs sizes that keep the alignment of what is shifted, and no
// fixed items in the part.

// A leaf is a part that reduction cannot simplify: items over sections
// [0, sections), to be packed from offset base up.
type leaf struct {
	items    []item
	sections int32
	base     int64
}

// reduceDepth bounds the work on deep nests, each level of which would copy
// the rest; the skyline order packs nests optimally anyway.
const reduceDepth = 16

// reduce returns the leaves and writes the offsets of peeled items, by index.
// It leaves the other offsets as they are. The leaves reuse the memory of items.
func reduce(items []item, sections int32, offsets []int64) []leaf {
	return reduceInto(nil, items, sections, 0, 0, offsets)
}

func reduceInto(leaves []leaf, items []item, sections int32, base int64, depth int, offsets []int64) []leaf {
	parts := split(items)
	for _, part := range parts {
		l := leaf{part, sections, base}
		if len(parts) > 1 || depth > 0 {
			l.sections = restrict(part)
		}
		top, rest := base, l.items
		if depth < reduceDepth {
			top, rest = peel(l, offsets)
		}
		if top == base {
			leaves = append(leaves, l)
		} else if len(rest) > 0 {
			leaves = reduceInto(leaves, rest, l.sections, top, depth+1, offsets)
		}
	}
	return leaves
}

// split sorts the items by birth, in place, and cuts where nothing is alive.
func split(items []item) [][]item {
	byBirth := func(a, b item) int { return cmp.Or(cmp.Compare(a.lo, b.lo), cmp.Compare(a.index, b.index)) }
	if !slices.IsSortedFunc(items, byBirth) {
		slices.SortFunc(items, byBirth)
	}
	var parts [][]item
	from, end := 0, int32(0)
	for k := range items {
		if items[k].lo >= end && k > from {
			parts = append(parts, items[from:k])
			from = k
		}
		end = max(end, items[k].hi)
	}
	if from < len(items) {
		parts = append(parts, items[from:])
	}
	return parts
}

// peel places the items that span the leaf at its bottom. It returns the others,
// in the same memory, and the offset from which they are packed.
func peel(l leaf, offsets []int64) (top int64, rest []item) {
	widest := int64(1)
	for i := range l.items {
		widest = max(widest, l.items[i].align)
	}
	for i := range l.items {
		if l.items[i].fixed >= 0 || widest%l.items[i].align != 0 {
			return l.base, nil
		}
	}
	top, rest = l.base, l.items[:0]
	for _, it := range l.items {
		if it.lo == 0 && it.hi == l.sections && it.size%widest == 0 {
			offsets[it.index] = top
			top += it.size
		} else {
			rest = append(rest, it)
		}
	}
	return top, rest
}
