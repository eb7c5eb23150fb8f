package alloc

import (
	"cmp"
	"slices"
)

// LowerBound returns a height that no packing of p can undercut, in time
// O(n log n): the most bytes alive at once, counting the padding that
// alignment forces below every living buffer but the topmost, and the end of
// the highest fixed buffer. The search may prove a higher one.
func LowerBound(p Problem) int64 {
	items, sections := compress(p.Buffers)
	return slices.Max(append(loads(items, sections), 0))
}

// loads returns for each section the least height its living items need.
//
// All offsets are multiples of g, the greatest common divisor of the
// alignments, so an item below another occupies its size rounded up to g.
// Only the topmost item can leave its padding out; the largest padding among
// the living is the most that can be saved.
func loads(items []item, sections int32) []int64 {
	g := granule(items)
	load := make([]int64, sections+1)
	padded := false
	for i := range items {
		it := &items[i]
		size := roundUp(it.size, g)
		padded = padded || size != it.size
		load[it.lo] += size
		load[it.hi] -= size
	}
	for s := int32(1); s < sections; s++ {
		load[s] += load[s-1]
	}
	load = load[:sections]
	if padded {
		paint(items, sections, func(it *item) int64 { return roundUp(it.size, g) - it.size },
			func(s int32, pad int64) { load[s] -= pad })
	}
	if slices.ContainsFunc(items, func(it item) bool { return it.fixed >= 0 }) {
		end := func(it *item) int64 {
			if it.fixed < 0 {
				return 0
			}
			return it.fixed + it.size
		}
		paint(items, sections, end, func(s int32, top int64) { load[s] = max(load[s], top) })
	}
	return load
}

// paint calls f once per covered section with the largest value of key among
// its items, in near-linear time: the largest paint first, and a section once
// painted is skipped by following links to the next unpainted one.
func paint(items []item, sections int32, key func(*item) int64, f func(s int32, v int64)) {
	order := make([]int32, len(items))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(key(&items[b]), key(&items[a])) })
	next := make([]int32, sections+1)
	for s := range next {
		next[s] = int32(s)
	}
	find := func(s int32) int32 {
		for next[s] != s {
			next[s] = next[next[s]]
			s = next[s]
		}
		return s
	}
	for _, i := range order {
		it := &items[i]
		for s := find(it.lo); s < it.hi; s = find(s) {
			f(s, key(it))
			next[s] = s + 1
		}
	}
}

// granule returns the greatest common divisor of all alignments.
func granule(items []item) int64 {
	var g int64
	for i := range items {
		g = gcd(g, items[i].align)
	}
	return max(g, 1)
}

// gcd returns the greatest common divisor of non-negative numbers; gcd(0, b) is b.
func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func roundUp(x, g int64) int64 { return (x + g - 1) / g * g }
