package alloc

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// Greedy packings
//
// Approach: sort the items by some rule and give each in turn the lowest
// place where it fits. Three ways to find that place:
//
//	skyline   on top of everything placed during its lifetime; holes are never
//	          reused; O(n log n). Optimal when lifetimes nest like brackets and
//	          the longest goes first, which is the shape of a forward pass
//	          followed by its backward pass.
//	fit       the lowest hole, by a walk up the placed items; O(n^2) in the
//	          worst case, so it works under a budget.
//	niche     fill the lowest niche of the skyline with the first item of the
//	          order that fits; see niche.go. Usually the best.
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
func bySize(a, b *item) int  { return cmp.Compare(b.size, a.size) }
func byLower(a, b *item) int { return int(a.lo) - int(b.lo) }
func byUpper(a, b *item) int { return int(b.hi) - int(a.hi) }
func byArea(a, b *item) int {
	return cmp.Compare(float64(b.size)*float64(b.width()), float64(a.size)*float64(a.width()))
}

// chain compares by each rule in turn and finally by index, so that every order
// is total and results are reproducible.
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
	chain("upper,width", byUpper, byWidth, bySize),
}

var peakOrder = chain("peak,width", byPeak, byWidth, byArea)

// byPeak puts items of crowded sections first; markPeaks must have run.
func byPeak(a, b *item) int { return cmp.Compare(b.peak, a.peak) }

// markPeaks stores in each item the largest load among its sections.
func markPeaks(items []item, sections int32) {
	peaks := newPeaks(loads(items, sections))
	for i := range items {
		items[i].peak = peaks.highest(items[i].lo, items[i].hi)
	}
}

// newPeaks returns a profile with the given heights.
func newPeaks(heights []int64) *profile {
	s := newProfile(int32(len(heights)))
	copy(s.top[s.leaves:], heights)
	for k := s.leaves - 1; k >= 1; k-- {
		s.top[k] = max(s.top[2*k], s.top[2*k+1])
	}
	return s
}

// A packing is a candidate answer for a list of items.
type packing struct {
	offsets []int64 // parallel to the items
	height  int64
}

// greedy returns the best packing found, stopping at the first whose height
// is at most target. effort bounds the steps of all passes but the first, and
// no pass begins after the context has ended.
func greedy(ctx context.Context, items []item, sections int32, target, effort int64) packing {
	best := packing{height: math.MaxInt64}
	keep := func(p packing, ok bool) bool {
		if ok && p.height < best.height {
			best = p
		}
		return best.height <= target
	}
	fixed := pinned(items)
	if !fixed {
		if keep(skyline(items, sections, sorted(items, orders[0])), true) {
			return best
		}
	} else {
		unlimited := int64(math.MaxInt64)
		p, _ := fit(items, sections, sorted(items, orders[0]), math.MaxInt64, &unlimited)
		if keep(p, true) {
			return best
		}
	}
	if !fixed {
		for _, o := range orders[:2] {
			if ctx.Err() != nil {
				return best
			}
			if keep(fillNiches(items, sections, sorted(items, o), best.height-1, &effort)) {
				return best
			}
		}
		keep(squeaky(ctx, items, sections, target, effort/5*4), true)
		effort /= 5
	}
	for k, o := range orders {
		if effort < 0 || best.height <= target || ctx.Err() != nil {
			break
		}
		perm := sorted(items, o)
		if !fixed && k > 1 && keep(fillNiches(items, sections, perm, best.height-1, &effort)) {
			break
		}
		keep(fit(items, sections, perm, best.height-1, &effort))
	}
	return best
}

// squeakyRounds bounds the rounds of squeaky: later ones rarely help.
const squeakyRounds = 60

// squeaky fills niches again and again; each round, items that ended above
// the target move forward in the order by a tenth of its length (squeaky wheel
// optimisation, Joslin and Clements 1999).
func squeaky(ctx context.Context, items []item, sections int32, target, effort int64) packing {
	best := packing{height: math.MaxInt64}
	markPeaks(items, sections)
	perm := sorted(items, peakOrder)
	place := make([]int64, len(items)) // per item: sort key, kept between rounds
	for r, i := range perm {
		place[i] = int64(r)
	}
	step := int64(len(items)/10 + 1)
	for round := 0; round < squeakyRounds && ctx.Err() == nil; round++ {
		p, ok := fillNiches(items, sections, perm, math.MaxInt64, &effort)
		if !ok {
			break
		}
		if p.height < best.height {
			best = p
		}
		if best.height <= target {
			break
		}
		for i := range items {
			if p.offsets[i]+items[i].size > target {
				place[i] -= step
			}
		}
		slices.SortStableFunc(perm, func(i, j int32) int { return cmp.Compare(place[i], place[j]) })
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
		off := it.alignUp(line.highest(it.lo, it.hi))
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

// A shelf keeps the placed items of one stretch of time, sorted by offset.
type shelf []slot

type slot struct {
	lo, hi   int32
	off, end int64
}

// shelfShift divides the sections into stretches of equal length (a power of
// two, 1<<shift), as short as possible while an item touches few of them on
// average.
func shelfShift(items []item, sections int32) (shift uint) {
	const spread = 4
	for ; ; shift++ {
		var touched int64
		for i := range items {
			touched += int64((items[i].hi-1)>>shift - items[i].lo>>shift + 1)
		}
		if touched <= spread*int64(len(items)) || sections>>shift == 0 {
			return shift
		}
	}
}

// fit gives each item the lowest hole that takes it. It gives up, and reports
// false, when the packing would exceed limit or after effort steps.
func fit(items []item, sections int32, perm []int32, limit int64, effort *int64) (packing, bool) {
	p := packing{offsets: make([]int64, len(items))}
	shift := shelfShift(items, sections)
	stock := make([]shelf, sections>>shift+1)
	next := make([]int32, len(stock)) // per shelf: slots before this one cannot collide any more
	for _, i := range perm {
		it := &items[i]
		first, last := it.lo>>shift, (it.hi-1)>>shift
		off := max(it.fixed, 0)
		for b := first; b <= last; b++ {
			next[b] = 0
		}
		for moved := it.fixed < 0; moved; {
			moved = false
			for b := first; b <= last; b++ {
				from := next[b]
				up := stock[b].clear(it, off, &next[b])
				*effort -= int64(next[b]-from) + 1
				if up != off {
					off, moved = up, last > first
				}
			}
		}
		if off > limit-it.size || *effort < 0 {
			return p, false
		}
		placed := slot{it.lo, it.hi, off, off + it.size}
		for b := first; b <= last; b++ {
			stock[b].insert(placed)
		}
		p.offsets[i] = off
		p.height = max(p.height, off+it.size)
	}
	return p, true
}

// clear returns off raised until the item collides with nothing on this shelf.
// next counts the slots that can no longer collide, since off only rises.
func (s shelf) clear(it *item, off int64, next *int32) int64 {
	k := *next
	for ; int(k) < len(s) && s[k].off < off+it.size; k++ {
		if t := &s[k]; t.lo < it.hi && it.lo < t.hi && t.end > off {
			off = it.alignUp(t.end)
		}
	}
	*next = k
	return off
}

func (s *shelf) insert(t slot) {
	at, _ := slices.BinarySearchFunc(*s, t.off, func(s slot, off int64) int { return cmp.Compare(s.off, off) })
	*s = slices.Insert(*s, at, t)
}
