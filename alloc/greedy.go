package alloc

import (
	"math"
	"slices"
)

// Greedy packings
//
// Approach: sort the items by some rule and give each in turn the lowest
// place where it fits. Two ways to find that place:
//
//	skyline   on top of everything placed during its lifetime; holes are never
//	          reused; O(n log n). Optimal when lifetimes nest like brackets and
//	          the longest goes first, which is the shape of a forward pass
//	          followed by its backward pass.
//	fit       the lowest hole, by a walk up the placed items; O(n^2) in the
//	          worst case, so it works under a budget.
//
// Example (skyline, longest first):     c c
//
//	                                   b b b b
//	                                   a a a a a a
//
// Weakness: no order is right for all inputs, so several are tried and the
// best result kept; 5 to 15 % above the optimum is common on adversarial
// inputs, and there the exact search takes over.

// An order compares items: negative puts a before b.
type order struct {
	name    string
	compare func(a, b *item) int
}

func byWidth(a, b *item) int { return int(b.width()) - int(a.width()) }
func bySize(a, b *item) int  { return compare(b.size, a.size) }
func byLower(a, b *item) int { return int(a.lo) - int(b.lo) }
func byUpper(a, b *item) int { return int(b.hi) - int(a.hi) }
func byArea(a, b *item) int {
	return compareFloat(float64(b.size)*float64(b.width()), float64(a.size)*float64(a.width()))
}

func compareFloat(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// chain compares by each rule in turn and by index at last, so that every
// order is total and results are reproducible.
func chain(name string, rules ...func(a, b *item) int) order {
	return order{name, func(a, b *item) int {
		for _, rule := range rules {
			if c := rule(a, b); c != 0 {
				return c
			}
		}
		return int(a.index) - int(b.index)
	}}
}

var orders = []order{
	chain("width,size", byWidth, bySize, byLower),
	chain("size,width", bySize, byWidth, byLower),
	chain("area,width", byArea, byWidth, byLower),
	chain("lower,width", byLower, byUpper, bySize),
	chain("upper,width", func(a, b *item) int { return byUpper(a, b) }, byWidth, bySize),
}

// A packing is a candidate answer for a list of items.
type packing struct {
	offsets []int64 // parallel to the items
	height  int64
}

// greedy returns the best packing found, stopping at the first whose height
// is at most target. effort bounds the steps spent in fit passes.
func greedy(items []item, sections int32, target, effort int64) packing {
	best := packing{height: math.MaxInt64}
	keep := func(p packing, ok bool) bool {
		if ok && p.height < best.height {
			best = p
		}
		return best.height <= target
	}
	fixed := slices.ContainsFunc(items, func(it item) bool { return it.fixed >= 0 })
	if !fixed {
		for _, o := range orders[:1] {
			if keep(skyline(items, sections, sorted(items, o)), true) {
				return best
			}
		}
	}
	for _, o := range orders {
		limit := effort
		if best.offsets == nil {
			limit = math.MaxInt64 // something must come out
		}
		if p, ok := fit(items, sorted(items, o), limit); keep(p, ok) {
			return best
		}
	}
	return best
}

// sorted returns the positions of the items in the given order, those with a
// fixed offset first.
func sorted(items []item, o order) []int32 {
	perm := make([]int32, len(items))
	for i := range perm {
		perm[i] = int32(i)
	}
	slices.SortFunc(perm, func(i, j int32) int {
		a, b := &items[i], &items[j]
		if (a.fixed >= 0) != (b.fixed >= 0) {
			if a.fixed >= 0 {
				return -1
			}
			return 1
		}
		return o.compare(a, b)
	})
	return perm
}

// skyline puts each item on top of what was placed before in its sections.
// No item may be fixed.
func skyline(items []item, sections int32, perm []int32) packing {
	p := packing{offsets: make([]int64, len(items))}
	line := newProfile(sections)
	for _, i := range perm {
		it := &items[i]
		off := it.up(line.highest(it.lo, it.hi))
		p.offsets[i] = off
		line.raise(it.lo, it.hi, off+it.size)
		p.height = max(p.height, off+it.size)
	}
	return p
}

// A profile holds a height per section, with "highest over a range" and
// "raise a range to h, which is no lower than its highest" in O(log n).
// Because heights only rise, no lazy push is needed: a node's own value is a
// floor for its whole range, top the highest value inside it.
type profile struct {
	leaves int32
	floor  []int64
	top    []int64
}

func newProfile(sections int32) *profile {
	leaves := int32(1)
	for leaves < sections {
		leaves *= 2
	}
	return &profile{leaves, make([]int64, 2*leaves), make([]int64, 2*leaves)}
}

func (s *profile) highest(lo, hi int32) int64 {
	var h int64
	l, r := lo+s.leaves, hi+s.leaves
	for l < r {
		if l&1 == 1 {
			h = max(h, s.top[l])
			l++
		}
		if r&1 == 1 {
			r--
			h = max(h, s.top[r])
		}
		l, r = l/2, r/2
	}
	for l = (lo + s.leaves) / 2; l >= 1; l /= 2 {
		h = max(h, s.floor[l])
	}
	for r = (hi - 1 + s.leaves) / 2; r >= 1; r /= 2 {
		h = max(h, s.floor[r])
	}
	return h
}

func (s *profile) raise(lo, hi int32, h int64) {
	l, r := lo+s.leaves, hi+s.leaves
	for l < r {
		if l&1 == 1 {
			s.floor[l], s.top[l] = h, h
			l++
		}
		if r&1 == 1 {
			r--
			s.floor[r], s.top[r] = h, h
		}
		l, r = l/2, r/2
	}
	for l = (lo + s.leaves) / 2; l >= 1; l /= 2 {
		s.top[l] = max(s.top[l], h)
	}
	for r = (hi - 1 + s.leaves) / 2; r >= 1; r /= 2 {
		s.top[r] = max(s.top[r], h)
	}
}

// A slot is a placed item, kept in a list sorted by offset.
type slot struct {
	lo, hi   int32
	off, end int64
}

// fit gives each item the lowest hole that takes it. It gives up, and reports
// false, after effort steps along the list, or when a fixed item is blocked.
func fit(items []item, perm []int32, effort int64) (packing, bool) {
	p := packing{offsets: make([]int64, len(items))}
	placed := make([]slot, 0, len(items))
	for _, i := range perm {
		it := &items[i]
		off := it.fixed
		if off < 0 {
			var steps int
			off, steps = lowestHole(placed, it)
			if effort -= int64(steps); effort < 0 {
				return p, false
			}
		}
		at, _ := slices.BinarySearchFunc(placed, off, func(s slot, off int64) int { return compare(s.off, off) })
		placed = slices.Insert(placed, at, slot{it.lo, it.hi, off, off + it.size})
		p.offsets[i] = off
		p.height = max(p.height, off+it.size)
	}
	return p, true
}

func lowestHole(placed []slot, it *item) (off int64, steps int) {
	for k := range placed {
		s := &placed[k]
		if s.lo >= it.hi || it.lo >= s.hi {
			continue
		}
		if off+it.size <= s.off {
			return off, k + 1
		}
		if s.end > off {
			off = it.up(s.end)
		}
	}
	return off, len(placed)
}
