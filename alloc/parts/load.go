package parts

import (
	"cmp"
	"slices"
)

// Loads returns for each section the least height its living items need.
//
// All offsets are multiples of g, the greatest common divisor of the
// alignments, so an item below another occupies its size rounded up to g.
// Only the topmost item can leave its padding out; the largest padding among
// the living is the most that can be saved.
func Loads(items []Item, sections int32) []int64 {
	g := Granule(items)
	load := make([]int64, sections+1)
	padded := false
	for i := range items {
		it := &items[i]
		size := RoundUp(it.Size, g)
		padded = padded || size != it.Size
		load[it.Lo] += size
		load[it.Hi] -= size
	}
	for s := int32(1); s < sections; s++ {
		load[s] += load[s-1]
	}
	load = load[:sections]
	if padded {
		paint(items, sections, func(it *Item) int64 { return RoundUp(it.Size, g) - it.Size },
			func(s int32, pad int64) { load[s] -= pad })
	}
	if slices.ContainsFunc(items, func(it Item) bool { return it.Fixed >= 0 }) {
		end := func(it *Item) int64 {
			if it.Fixed < 0 {
				return 0
			}
			return it.Fixed + it.Size
		}
		paint(items, sections, end, func(s int32, top int64) { load[s] = max(load[s], top) })
	}
	return load
}

// paint calls f once per covered section with the largest value of key among
// its items, in near-linear time: the largest paint first, and a section once
// painted is skipped by following links to the next unpainted one.
func paint(items []Item, sections int32, key func(*Item) int64, f func(s int32, v int64)) {
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
		for s := find(it.Lo); s < it.Hi; s = find(s) {
			f(s, key(it))
			next[s] = s + 1
		}
	}
}

// Granule returns the greatest common divisor of all alignments.
func Granule(items []Item) int64 {
	var g int64
	for i := range items {
		g = GCD(g, items[i].Align)
	}
	return max(g, 1)
}

// GCD returns the greatest common divisor of non-negative numbers; GCD(0, b) is b.
func GCD(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// RoundUp returns the least multiple of g that is at least x.
func RoundUp(x, g int64) int64 { return (x + g - 1) / g * g }
