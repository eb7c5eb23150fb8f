package alloc

import (
	"cmp"
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
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

// reduceDepth bounds the work on deep nests, each level of which would copy
// the rest; the skyline order packs nests optimally anyway.
const reduceDepth = 16

// reduce returns the leaves and writes the offsets of peeled items, by index.
// It leaves the other offsets as they are. The leaves reuse the memory of items.
func reduce(items []parts.Item, sections int32, offsets []int64) []parts.Part {
	return reduceInto(nil, items, sections, 0, 0, offsets)
}

func reduceInto(leaves []parts.Part, items []parts.Item, sections int32, base int64, depth int, offsets []int64) []parts.Part {
	apart := split(items)
	for _, items := range apart {
		l := parts.Part{Items: items, Sections: sections, Base: base}
		if len(apart) > 1 || depth > 0 {
			l.Sections = parts.Restrict(items)
		}
		top, rest := base, l.Items
		if depth < reduceDepth {
			top, rest = peel(l, offsets)
		}
		if top == base {
			leaves = append(leaves, l)
		} else if len(rest) > 0 {
			leaves = reduceInto(leaves, rest, l.Sections, top, depth+1, offsets)
		}
	}
	return leaves
}

// split sorts the items by birth, in place, and cuts where nothing is alive.
func split(items []parts.Item) [][]parts.Item {
	byBirth := func(a, b parts.Item) int { return cmp.Or(cmp.Compare(a.Lo, b.Lo), cmp.Compare(a.Index, b.Index)) }
	if !slices.IsSortedFunc(items, byBirth) {
		slices.SortFunc(items, byBirth)
	}
	var apart [][]parts.Item
	from, end := 0, int32(0)
	for k := range items {
		if items[k].Lo >= end && k > from {
			apart = append(apart, items[from:k])
			from = k
		}
		end = max(end, items[k].Hi)
	}
	if from < len(items) {
		apart = append(apart, items[from:])
	}
	return apart
}

// peel places the items that span the leaf at its bottom. It returns the others,
// in the same memory, and the offset from which they are packed.
func peel(l parts.Part, offsets []int64) (top int64, rest []parts.Item) {
	widest := int64(1)
	for i := range l.Items {
		widest = max(widest, l.Items[i].Align)
	}
	for i := range l.Items {
		if l.Items[i].Fixed >= 0 || widest%l.Items[i].Align != 0 {
			return l.Base, nil
		}
	}
	top, rest = l.Base, l.Items[:0]
	for _, it := range l.Items {
		if it.Lo == 0 && it.Hi == l.Sections && it.Size%widest == 0 {
			offsets[it.Index] = top
			top += it.Size
		} else {
			rest = append(rest, it)
		}
	}
	return top, rest
}
