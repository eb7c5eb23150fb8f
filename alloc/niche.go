package alloc

import (
	"math"
	"math/bits"
	"slices"
)

// Niches
//
// Approach (Burke, Kendall and Whitwell's best fit, turned to fixed lifetimes):
// look at the skyline of what is placed. A segment between two higher walls is a
// niche. Whatever is placed later within these sections must start at its floor
// or above, so nothing is lost by filling it now: place the first item of the
// order that fits between the walls. If none does, the niche is wasted; raise its
// floor to the lower wall.
//
// Niches share no section and so no item: the order in which they are filled does
// not change the packing. So the next niche is sought downhill from the last one,
// whose data is still in the caches.
//
// Example: walls at 5 and 3 around a niche at 1; an item of size 1 that spans
// half of it makes the skyline 5 2 1 3; if nothing fits at 1, that half is raised
// to 2 and joins its neighbour.
//
// The item is found in trees over birth sections, one per power of two of the
// lifetime, whose nodes hold the earliest death and the best rank below them. So a
// step takes about logarithmic time, and a million items take a few seconds.
//
// Weakness: items are chosen by rank, not by how well they fill the niche.

// nicheStep is the effort of one step of fillNiches, in steps of fit.
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
		lo := line.valley()
		i, ok := free.take(lo, line.end[lo])
		if !ok {
			line.lift(lo)
			continue
		}
		it := &items[i]
		off := it.alignUp(line.floor[lo])
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
// first section. Adjacent floors differ.
type niches struct {
	sections int32
	floor    []int64
	end      []int32 // one past the last section
	prev     []int32 // start of the segment to the left, or -1
	here     int32   // the segment that changed last
}

func newNiches(sections int32) *niches {
	return newSkyline(make([]int64, sections))
}

// newSkyline returns a skyline with the given height per section.
func newSkyline(floor []int64) *niches {
	sections := int32(len(floor))
	n := &niches{sections: sections, floor: make([]int64, sections), end: make([]int32, sections), prev: make([]int32, sections)}
	for lo, prev := int32(0), int32(-1); lo < sections; {
		hi := lo + 1
		for hi < sections && floor[hi] == floor[lo] {
			hi++
		}
		n.add(lo, hi, prev, floor[lo])
		lo, prev = hi, lo
	}
	return n
}

// copy makes n equal to from, reusing its memory.
func (n *niches) copy(from *niches) {
	n.sections, n.here = from.sections, from.here
	n.floor = append(n.floor[:0], from.floor...)
	n.end = append(n.end[:0], from.end...)
	n.prev = append(n.prev[:0], from.prev...)
}

// valley returns a niche. It walks downhill from the last change, in amortised
// constant time, since the segments it passes are filled on the way back.
func (n *niches) valley() int32 {
	for {
		floor := n.floor[n.here]
		l, r := n.prev[n.here], n.end[n.here]
		switch {
		case l >= 0 && n.floor[l] < floor:
			n.here = l
		case r < n.sections && n.floor[r] < floor:
			n.here = r
		default:
			return n.here
		}
	}
}

// below moves to the first segment from section s on whose floor is below level,
// and returns it, or n.sections if there is none.
func (n *niches) below(level int64, s int32) int32 {
	lo := n.here
	for lo > s {
		lo = n.prev[lo]
	}
	for lo < n.sections && n.floor[lo] >= level {
		lo = n.end[lo]
	}
	if lo < n.sections {
		n.here = lo
	}
	return lo
}

// add makes [lo, hi) a segment, replacing the one that started at lo.
func (n *niches) add(lo, hi, prev int32, floor int64) {
	n.floor[lo], n.end[lo], n.prev[lo] = floor, hi, prev
	if hi < n.sections {
		n.prev[hi] = lo
	}
	n.here = lo
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
		lo = l
	}
	if hi < n.sections && n.floor[hi] == floor {
		hi = n.end[hi]
	}
	n.add(lo, hi, n.prev[lo], floor)
}

// unplaced finds the best-ranked item within a range of sections. Tree k holds the
// items whose width has k bits, so that items too long for a niche, which often
// rank best, do not slow down the search among shorter ones.
type unplaced [32]tree

// A tree is binary; its leaves are items in order of birth.
type tree struct {
	leaves int32
	item   []int32 // of each leaf
	birth  []int32 // of each leaf
	node   []best  // the first is unused, the children of k are 2k and 2k+1
}

// best summarises the items below a node.
type best struct {
	death int32 // the earliest end
	rank  int32 // the best rank
}

// nothing is the death and rank of a node without items.
const nothing = math.MaxInt32

func newUnplaced(items []item, sections int32, perm []int32) *unplaced {
	u := &unplaced{}
	rank, order := make([]int32, len(items)), make([]int32, len(items))
	next := make([]int32, sections+1) // per section: position in order of the next item born there
	for i := range items {
		next[items[i].lo+1]++
	}
	for s := range sections {
		next[s+1] += next[s]
	}
	for r, i := range perm {
		rank[i] = int32(r)
		order[next[items[i].lo]] = i
		next[items[i].lo]++
	}
	for _, i := range order {
		t := &u[bits.Len32(uint32(items[i].width()))]
		t.item, t.birth = append(t.item, i), append(t.birth, items[i].lo)
	}
	for k := range u {
		if t := &u[k]; len(t.item) > 0 {
			t.build(items, rank)
		}
	}
	return u
}

func (t *tree) build(items []item, rank []int32) {
	t.leaves = 1
	for int(t.leaves) < len(t.item) {
		t.leaves *= 2
	}
	t.node = slices.Repeat([]best{{nothing, nothing}}, int(2*t.leaves))
	for leaf, i := range t.item {
		t.node[t.leaves+int32(leaf)] = best{items[i].hi, rank[i]}
	}
	for k := t.leaves - 1; k >= 1; k-- {
		t.pull(k)
	}
}

func (t *tree) pull(k int32) {
	a, b := &t.node[2*k], &t.node[2*k+1]
	t.node[k] = best{min(a.death, b.death), min(a.rank, b.rank)}
}

// take removes and returns the best-ranked item with a lifetime in [lo, hi).
func (u *unplaced) take(lo, hi int32) (int32, bool) {
	from, leaf, rank := (*tree)(nil), int32(-1), int32(nothing)
	for k := bits.Len32(uint32(hi - lo)); k > 0; k-- {
		t := &u[k]
		if t.leaves == 0 || t.node[1].rank >= rank {
			continue
		}
		if l, r := t.find(lo, hi, rank); l >= 0 {
			from, leaf, rank = t, l, r
		}
	}
	if leaf < 0 {
		return 0, false
	}
	from.node[leaf] = best{nothing, nothing}
	for k := leaf / 2; k >= 1; k /= 2 {
		from.pull(k)
	}
	return from.item[leaf-from.leaves], true
}

// find returns the leaf and rank of the best-ranked item in [lo, hi) that outranks
// rank; leaf is -1 if there is none.
func (t *tree) find(lo, hi, rank int32) (leaf, best int32) {
	first, _ := slices.BinarySearch(t.birth, lo)
	last, _ := slices.BinarySearch(t.birth[first:], hi)
	leaf = -1
	// The canonical nodes of the leaves born in [lo, hi).
	for l, r := int32(first)+t.leaves, int32(first+last)+t.leaves; l < r; l, r = l/2, r/2 {
		if l&1 == 1 {
			leaf, rank = t.better(l, hi, leaf, rank)
			l++
		}
		if r&1 == 1 {
			r--
			leaf, rank = t.better(r, hi, leaf, rank)
		}
	}
	return leaf, rank
}

// better searches below node k for an item that ends by hi and outranks rank.
func (t *tree) better(k, hi, leaf, rank int32) (int32, int32) {
	n := t.node[k]
	if n.death > hi || n.rank >= rank {
		return leaf, rank
	}
	if k >= t.leaves {
		return k, n.rank
	}
	a, b := 2*k, 2*k+1
	if t.node[b].rank < t.node[a].rank {
		a, b = b, a
	}
	leaf, rank = t.better(a, hi, leaf, rank)
	return t.better(b, hi, leaf, rank)
}
