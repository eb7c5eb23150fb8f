package alloc

import (
	"math"
	"slices"
)

// Niches
//
// Approach (Burke, Kendall and Whitwell's best fit, turned to fixed lifetimes):
// look at the skyline of what is placed. Its lowest segment is a niche between
// two higher walls. Whatever is placed later within these sections must start
// at its floor or above, so nothing is lost by filling it now: put there the
// first item of the order that fits between the walls. If none does, the niche
// is waste; raise its floor to the lower wall.
//
// Example: walls at 5 and 3 round a niche at 1; an item of size 1 that spans
// half of it makes the skyline 5 2 1 3; nothing fits into the 1: it becomes 2
// and joins its neighbour.
//
// The item is found in a tree over birth sections, whose nodes know the
// earliest death and the best rank below them, so a step takes about
// logarithmic time and a million items a few seconds.
//
// Weakness: the niche is filled by rank, not by how well an item fills it.

// nicheStep is the price of one step, in steps along a shelf.
const nicheStep = 50

// fillNiches packs the items; ties go to the first in perm. It gives up, and
// reports false, beyond limit or effort. No item may be fixed.
func fillNiches(items []item, sections int32, perm []int32, limit int64, effort *int64) (packing, bool) {
	p := packing{offsets: make([]int64, len(items))}
	line := newNiches(sections)
	free := newUnplaced(items, sections, perm)
	for left := len(items); left > 0; {
		*effort -= nicheStep
		if *effort < 0 {
			return p, false
		}
		lo := line.lowest()
		i, ok := free.take(lo, line.end[lo])
		if !ok {
			line.lift(lo)
			continue
		}
		it := &items[i]
		off := it.up(line.floor[lo])
		top := off + it.size
		if top > limit {
			return p, false
		}
		p.offsets[i] = off
		p.height = max(p.height, top)
		line.build(lo, it.lo, it.hi, top)
		left--
	}
	return p, true
}

// niches is a skyline: segments of sections with a floor, named by their
// first section, and a heap of them by floor. Adjacent floors differ.
type niches struct {
	sections int32
	floor    []int64
	end      []int32 // one past the last section; 0: no segment starts here
	prev     []int32 // start of the segment to the left, or -1
	heap     []segment
}

type segment struct {
	floor  int64
	lo, hi int32
}

func newNiches(sections int32) *niches {
	n := &niches{sections: sections, floor: make([]int64, sections), end: make([]int32, sections), prev: make([]int32, sections)}
	n.add(0, sections, -1, 0)
	return n
}

// lowest returns the leftmost of the lowest segments. Entries of segments
// that have changed since are dropped on the way.
func (n *niches) lowest() int32 {
	for {
		s := n.heap[0]
		if n.end[s.lo] == s.hi && n.floor[s.lo] == s.floor {
			return s.lo
		}
		n.pop()
	}
}

// add makes [lo, hi) a segment, in place of whatever started there.
func (n *niches) add(lo, hi, prev int32, floor int64) {
	n.floor[lo], n.end[lo], n.prev[lo] = floor, hi, prev
	if hi < n.sections {
		n.prev[hi] = lo
	}
	n.push(segment{floor, lo, hi})
}

// lift raises a niche to its lower wall and returns by how much.
func (n *niches) lift(lo int32) int64 {
	floor := n.floor[lo]
	wall := int64(math.MaxInt64)
	if l := n.prev[lo]; l >= 0 {
		wall = n.floor[l]
	}
	if r := n.end[lo]; r < n.sections {
		wall = min(wall, n.floor[r])
	}
	n.set(lo, n.end[lo], wall)
	return wall - floor
}

// build puts an item with the given top on [from, to) of the segment at lo.
func (n *niches) build(lo, from, to int32, top int64) {
	hi, floor := n.end[lo], n.floor[lo]
	prev := n.prev[lo]
	if lo < from {
		n.add(lo, from, prev, floor)
		prev = lo
	}
	if to < hi {
		n.add(to, hi, from, floor)
	}
	n.prev[from] = prev
	n.set(from, to, top)
}

// set gives a segment its floor and joins it to neighbours of equal floor.
func (n *niches) set(lo, hi int32, floor int64) {
	if l := n.prev[lo]; l >= 0 && n.floor[l] == floor {
		n.end[lo] = 0
		lo = l
	}
	if hi < n.sections && n.floor[hi] == floor {
		next := n.end[hi]
		n.end[hi] = 0
		hi = next
	}
	n.add(lo, hi, n.prev[lo], floor)
}

func (n *niches) push(s segment) {
	n.heap = append(n.heap, s)
	for k := len(n.heap) - 1; k > 0; {
		up := (k - 1) / 2
		if !n.heap[k].before(&n.heap[up]) {
			return
		}
		n.heap[k], n.heap[up] = n.heap[up], n.heap[k]
		k = up
	}
}

func (n *niches) pop() {
	last := len(n.heap) - 1
	n.heap[0] = n.heap[last]
	n.heap = n.heap[:last]
	for k := 0; ; {
		low := k
		for c := 2*k + 1; c <= 2*k+2 && c < last; c++ {
			if n.heap[c].before(&n.heap[low]) {
				low = c
			}
		}
		if low == k {
			return
		}
		n.heap[k], n.heap[low] = n.heap[low], n.heap[k]
		k = low
	}
}

func (s *segment) before(o *segment) bool {
	return s.floor < o.floor || s.floor == o.floor && s.lo < o.lo
}

// unplaced finds the best-ranked item within a range of sections: a binary
// tree whose leaves are the items in order of birth.
type unplaced struct {
	leaves int32
	item   []int32 // of each leaf
	first  []int32 // per section: first leaf born there or later
	death  []int32 // per node: earliest end of its items
	rank   []int32 // per node: best rank of its items
}

func newUnplaced(items []item, sections int32, perm []int32) *unplaced {
	u := &unplaced{leaves: 1, first: make([]int32, sections+1)}
	for int(u.leaves) < len(items) {
		u.leaves *= 2
	}
	for i := range items {
		u.first[items[i].lo+1]++
	}
	for s := range sections {
		u.first[s+1] += u.first[s]
	}
	u.item = make([]int32, len(items))
	u.death = slices.Repeat([]int32{math.MaxInt32}, int(2*u.leaves))
	u.rank = slices.Repeat([]int32{math.MaxInt32}, int(2*u.leaves))
	next := slices.Clone(u.first)
	for r, i := range perm {
		leaf := next[items[i].lo]
		next[items[i].lo]++
		u.item[leaf] = i
		u.death[u.leaves+leaf], u.rank[u.leaves+leaf] = items[i].hi, int32(r)
	}
	for k := u.leaves - 1; k >= 1; k-- {
		u.pull(k)
	}
	return u
}

func (u *unplaced) pull(k int32) {
	u.death[k] = min(u.death[2*k], u.death[2*k+1])
	u.rank[k] = min(u.rank[2*k], u.rank[2*k+1])
}

// take removes and returns the best-ranked item with a lifetime in [lo, hi).
func (u *unplaced) take(lo, hi int32) (int32, bool) {
	best, rank := int32(-1), int32(math.MaxInt32)
	// The canonical nodes of the leaves born in [lo, hi).
	for l, r := u.first[lo]+u.leaves, u.first[hi]+u.leaves; l < r; l, r = l/2, r/2 {
		if l&1 == 1 {
			best, rank = u.better(l, hi, best, rank)
			l++
		}
		if r&1 == 1 {
			r--
			best, rank = u.better(r, hi, best, rank)
		}
	}
	if best < 0 {
		return 0, false
	}
	u.death[best], u.rank[best] = math.MaxInt32, math.MaxInt32
	for k := best / 2; k >= 1; k /= 2 {
		u.pull(k)
	}
	return u.item[best-u.leaves], true
}

// better looks below a node for an item that ends by hi and outranks rank.
func (u *unplaced) better(k, hi, best, rank int32) (int32, int32) {
	if u.death[k] > hi || u.rank[k] >= rank {
		return best, rank
	}
	if k >= u.leaves {
		return k, u.rank[k]
	}
	a, b := 2*k, 2*k+1
	if u.rank[b] < u.rank[a] {
		a, b = b, a
	}
	best, rank = u.better(a, hi, best, rank)
	return u.better(b, hi, best, rank)
}
