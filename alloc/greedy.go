package alloc

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
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
	compare func(a, b *parts.Item) int
}

func byWidth(a, b *parts.Item) int { return int(b.Width()) - int(a.Width()) }
func bySize(a, b *parts.Item) int  { return cmp.Compare(b.Size, a.Size) }
func byLower(a, b *parts.Item) int { return int(a.Lo) - int(b.Lo) }
func byUpper(a, b *parts.Item) int { return int(b.Hi) - int(a.Hi) }
func byArea(a, b *parts.Item) int {
	return cmp.Compare(float64(b.Size)*float64(b.Width()), float64(a.Size)*float64(a.Width()))
}

// chain compares by each rule in turn and finally by index, so that every order
// is total and results are reproducible.
func chain(name string, rules ...func(a, b *parts.Item) int) order {
	return order{name, func(a, b *parts.Item) int {
		for _, rule := range rules {
			if c := rule(a, b); c != 0 {
				return c
			}
		}
		return int(a.Index) - int(b.Index)
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
func byPeak(a, b *parts.Item) int { return cmp.Compare(b.Peak, a.Peak) }

// markPeaks stores in each item the largest load among its sections.
func markPeaks(items []parts.Item, sections int32) {
	peaks := parts.ProfileOf(parts.Loads(items, sections))
	for i := range items {
		items[i].Peak = peaks.Highest(items[i].Lo, items[i].Hi)
	}
}

// greedy returns the best packing found, stopping at the first whose height
// is at most target. effort bounds the steps of all passes but the first, and
// no pass begins after the context has ended.
func greedy(ctx context.Context, items []parts.Item, sections int32, target, effort int64) parts.Packing {
	best := parts.Packing{Height: math.MaxInt64}
	keep := func(p parts.Packing, ok bool) bool {
		if ok && p.Height < best.Height {
			best = p
		}
		return best.Height <= target
	}
	fixed, first := pinned(items), sorted(items, orders[0])
	if !fixed {
		if keep(skyline(items, sections, first), true) {
			return best
		}
	} else {
		unlimited := int64(math.MaxInt64)
		p, _ := fit(items, sections, first, math.MaxInt64, &unlimited)
		if keep(p, true) {
			return best
		}
	}
	var free *unplaced
	if !fixed {
		free = newUnplaced(items, sections)
		for k, o := range orders[:2] {
			if ctx.Err() != nil {
				return best
			}
			perm := first
			if k > 0 {
				perm = sorted(items, o)
			}
			if keep(fillNiches(items, free, perm, best.Height-1, &effort)) {
				return best
			}
		}
		keep(squeakyWheel(ctx, items, free, target, effort/5*4), true)
		effort /= 5
	}
	for k, o := range orders {
		if effort < 0 || best.Height <= target || ctx.Err() != nil {
			break
		}
		perm := sorted(items, o)
		if !fixed && k > 1 && keep(fillNiches(items, free, perm, best.Height-1, &effort)) {
			break
		}
		keep(fit(items, sections, perm, best.Height-1, &effort))
	}
	return best
}

// squeakyRounds bounds the rounds of squeaky: later ones rarely help.
const squeakyRounds = 60

// squeakyWheel fills niches again and again; each round, items that ended above
// the target move forward in the order by a tenth of its length (squeaky wheel
// optimisation, Joslin and Clements 1999).
func squeakyWheel(ctx context.Context, items []parts.Item, free *unplaced, target, effort int64) parts.Packing {
	best := parts.Packing{Height: math.MaxInt64}
	markPeaks(items, free.sections)
	perm := sorted(items, peakOrder)
	place := make([]int64, len(items)) // per item: sort key, kept between rounds
	for r, i := range perm {
		place[i] = int64(r)
	}
	step := int64(len(items)/10 + 1)
	for round := 0; round < squeakyRounds && ctx.Err() == nil; round++ {
		p, ok := fillNiches(items, free, perm, math.MaxInt64, &effort)
		if !ok {
			break
		}
		if p.Height < best.Height {
			best = p
		}
		if best.Height <= target {
			break
		}
		advance(perm, place, step, func(i int32) bool { return p.Offsets[i]+items[i].Size > target })
	}
	return best
}

// advance moves some items of an order, sorted by their places, forward by a step. Those that move and those that stay keep their
// order among themselves; ties go to the first of the old order.
func advance(perm []int32, place []int64, step int64, moves func(i int32) bool) {
	type at struct{ item, was int32 }
	going, staying := make([]at, 0, len(perm)), make([]at, 0, len(perm))
	for k, i := range perm {
		if moves(i) {
			place[i] -= step
			going = append(going, at{i, int32(k)})
		} else {
			staying = append(staying, at{i, int32(k)})
		}
	}
	for k := range perm {
		next := &staying
		if len(staying) == 0 || len(going) > 0 && cmp.Or(cmp.Compare(place[going[0].item], place[staying[0].item]), cmp.Compare(going[0].was, staying[0].was)) < 0 {
			next = &going
		}
		perm[k], *next = (*next)[0].item, (*next)[1:]
	}
}

// sorted returns the positions of the items in the given order, those with a
// fixed offset first.
func sorted(items []parts.Item, o order) []int32 {
	perm := make([]int32, len(items))
	for i := range perm {
		perm[i] = int32(i)
	}
	slices.SortFunc(perm, func(i, j int32) int {
		a, b := &items[i], &items[j]
		if (a.Fixed >= 0) != (b.Fixed >= 0) {
			if a.Fixed >= 0 {
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
func skyline(items []parts.Item, sections int32, perm []int32) parts.Packing {
	p := parts.Packing{Offsets: make([]int64, len(items))}
	line := parts.NewProfile(sections)
	for _, i := range perm {
		it := &items[i]
		off := it.AlignUp(line.Highest(it.Lo, it.Hi))
		p.Offsets[i] = off
		line.Raise(it.Lo, it.Hi, off+it.Size)
		p.Height = max(p.Height, off+it.Size)
	}
	return p
}

// A shelf keeps the placed items of one stretch of time, sorted by offset.
type shelf []slot

type slot struct {
	lo, hi   int32
	off, end int64
}

// fit gives each item the lowest hole that takes it. It gives up, and reports
// false, when the packing would exceed limit or after effort steps.
func fit(items []parts.Item, sections int32, perm []int32, limit int64, effort *int64) (parts.Packing, bool) {
	p := parts.Packing{Offsets: make([]int64, len(items))}
	shift := parts.ShelfShift(items, sections)
	stock := make([]shelf, sections>>shift+1)
	next := make([]int32, len(stock)) // per shelf: slots before this one cannot collide any more
	for _, i := range perm {
		it := &items[i]
		first, last := it.Lo>>shift, (it.Hi-1)>>shift
		off := max(it.Fixed, 0)
		for b := first; b <= last; b++ {
			next[b] = 0
		}
		for moved := it.Fixed < 0; moved; {
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
		if off > limit-it.Size || *effort < 0 {
			return p, false
		}
		placed := slot{it.Lo, it.Hi, off, off + it.Size}
		for b := first; b <= last; b++ {
			stock[b].insert(placed)
		}
		p.Offsets[i] = off
		p.Height = max(p.Height, off+it.Size)
	}
	return p, true
}

// clear returns off raised until the item collides with nothing on this shelf.
// next counts the slots that can no longer collide, since off only rises.
func (s shelf) clear(it *parts.Item, off int64, next *int32) int64 {
	k := *next
	for ; int(k) < len(s) && s[k].off < off+it.Size; k++ {
		if t := &s[k]; t.lo < it.Hi && it.Lo < t.hi && t.end > off {
			off = it.AlignUp(t.end)
		}
	}
	*next = k
	return off
}

func (s *shelf) insert(t slot) {
	at, _ := slices.BinarySearchFunc(*s, t.off, func(s slot, off int64) int { return cmp.Compare(s.off, off) })
	*s = slices.Insert(*s, at, t)
}
