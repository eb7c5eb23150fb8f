package alloc

import (
	"math"
	"math/bits"
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
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

// fillNiches packs the items, which free knows; ties go to the first in perm. It gives up, and
// reports false, beyond limit or effort. No item may be fixed.
func fillNiches(items []parts.Item, free *unplaced, perm []int32, limit int64, effort *int64) (parts.Packing, bool) {
	p := parts.Packing{Offsets: make([]int64, len(items))}
	line := parts.NewNiches(free.sections)
	free.restore(items, perm)
	for left := len(items); left > 0; {
		*effort -= nicheStep
		if *effort < 0 {
			return p, false
		}
		lo := line.Valley()
		i, ok := free.take(lo, line.End[lo])
		if !ok {
			line.Lift(lo)
			continue
		}
		it := &items[i]
		off := it.AlignUp(line.Floor[lo])
		top := off + it.Size
		if top > limit {
			return p, false
		}
		p.Offsets[i] = off
		p.Height = max(p.Height, top)
		line.Build(lo, it.Lo, it.Hi, top)
		left--
	}
	return p, true
}

// unplaced finds the best-ranked item within a range of sections. Tree k holds the
// items whose width has k bits, so that items too long for a niche, which often
// rank best, do not slow down the search among shorter ones. It serves any number of
// packings of the same items: restore puts all of them back.
type unplaced struct {
	sections int32
	rank     []int32 // of each item
	trees    [32]tree
}

// A tree is binary; its leaves are items in order of birth.
type tree struct {
	leaves int32
	item   []int32 // of each leaf
	birth  []int32 // of each leaf
	shift  uint8   // a bucket is 1<<shift sections, for about as many buckets as leaves
	bucket []int32 // the first leaf born in each bucket or later
	node   []best  // the first is unused, the children of k are 2k and 2k+1
}

// best summarises the items below a node.
type best struct {
	death int32 // the earliest end
	rank  int32 // the best rank
}

// nothing is the death and rank of a node without items.
const nothing = math.MaxInt32

// newUnplaced returns the trees of items, which are empty until the first restore.
func newUnplaced(items []parts.Item, sections int32) *unplaced {
	u := &unplaced{sections: sections, rank: make([]int32, len(items))}
	order := make([]int32, len(items))
	next := make([]int32, sections+1) // per section: position in order of the next item born there
	for i := range items {
		next[items[i].Lo+1]++
	}
	for s := range sections {
		next[s+1] += next[s]
	}
	for i := range items {
		order[next[items[i].Lo]] = int32(i)
		next[items[i].Lo]++
	}
	for _, i := range order {
		t := &u.trees[bits.Len32(uint32(items[i].Width()))]
		t.item, t.birth = append(t.item, i), append(t.birth, items[i].Lo)
	}
	for k := range u.trees {
		if t := &u.trees[k]; len(t.item) > 0 {
			t.index(sections)
		}
	}
	return u
}

// index prepares a tree whose leaves are known.
func (t *tree) index(sections int32) {
	t.leaves = 1
	for int(t.leaves) < len(t.item) {
		t.leaves *= 2
	}
	t.node = slices.Repeat([]best{{nothing, nothing}}, int(2*t.leaves))
	for sections>>t.shift > t.leaves {
		t.shift++
	}
	t.bucket = make([]int32, sections>>t.shift+2)
	leaf := 0
	for b := range t.bucket {
		for leaf < len(t.birth) && int(t.birth[leaf]>>t.shift) < b {
			leaf++
		}
		t.bucket[b] = int32(leaf)
	}
}

// restore makes all items unplaced again, ranked by perm.
func (u *unplaced) restore(items []parts.Item, perm []int32) {
	for r, i := range perm {
		u.rank[i] = int32(r)
	}
	for k := range u.trees {
		t := &u.trees[k]
		for leaf, i := range t.item {
			t.node[t.leaves+int32(leaf)] = best{items[i].Hi, u.rank[i]}
		}
		for k := t.leaves - 1; k >= 1; k-- {
			t.pull(k)
		}
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
		t := &u.trees[k]
		if t.leaves == 0 || t.node[1].rank >= rank || t.node[1].death > hi {
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
	leaf = -1
	// The canonical nodes of the leaves born in [lo, hi).
	for l, r := t.leafFrom(lo)+t.leaves, t.leafFrom(hi)+t.leaves; l < r; l, r = l/2, r/2 {
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

// leafFrom returns the first leaf born at a section or later.
func (t *tree) leafFrom(section int32) int32 {
	b := section >> t.shift
	from, end := t.bucket[b], t.bucket[b+1]
	for from < end {
		if mid := (from + end) / 2; t.birth[mid] < section {
			from = mid + 1
		} else {
			end = mid
		}
	}
	return from
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
