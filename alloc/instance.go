package alloc

import (
	"cmp"
	"math"
	"slices"
)

// Compression of time
//
// Only the order of births and deaths matters, and of all moments only those
// where the set of living buffers is maximal: every other moment's set is
// contained in one of these. So time becomes a list of sections, one per
// maximal set, and a lifetime becomes a range of sections. Two buffers share
// a section exactly when their lifetimes overlap.
//
//	time     0  1  2  3  4  5
//	a        [-----)
//	b           [--------)          sections: {a,b} {b,c}
//	c                 [-----)       a=[0,1) b=[0,2) c=[1,2)

// An item is a buffer as the solvers see it.
type item struct {
	lo, hi int32 // sections [lo, hi)
	size   int64
	align  int64 // >= 1
	fixed  int64 // >= 0 pinned, else Free
	index  int32 // of the buffer in the Problem
	peak   int64 // largest load among its sections, once markPeaks was called
}

func (a *item) overlaps(b *item) bool { return a.lo < b.hi && b.lo < a.hi }

func (a *item) width() int32 { return a.hi - a.lo }

// alignUp rounds an offset up to the item's alignment.
func (a *item) alignUp(off int64) int64 {
	if a.align == 1 {
		return off
	}
	if r := off % a.align; r != 0 {
		off += a.align - r
	}
	return off
}

// compress turns buffers into items; sections counts the maximal sets.
func compress(buffers []Buffer) (items []item, sections int32) {
	n := len(buffers)
	births, deaths := make([]event, n), make([]event, n)
	items = make([]item, n)
	for i := range buffers {
		b := &buffers[i]
		births[i], deaths[i] = event{b.Lower, int32(i)}, event{b.Upper, int32(i)}
		items[i] = item{size: b.Size, align: b.align(), fixed: b.Fixed, index: int32(i)}
	}
	sortEvents(births)
	sortEvents(deaths)
	born := false // a birth happened since the last death
	for d, b := 0, 0; d < n; {
		if b < n && births[b].time < deaths[d].time {
			items[births[b].index].lo = sections
			born = true
			b++
			continue
		}
		if born {
			sections++
			born = false
		}
		items[deaths[d].index].hi = sections
		d++
	}
	return items, sections
}

type event struct {
	time  int64
	index int32
}

func sortEvents(ev []event) {
	byTime := func(a, b event) int {
		if c := cmp.Compare(a.time, b.time); c != 0 {
			return c
		}
		return cmp.Compare(a.index, b.index)
	}
	if !slices.IsSortedFunc(ev, byTime) {
		slices.SortFunc(ev, byTime)
	}
}

// restrict renumbers the sections of a subset of items, in place and in linear
// time, so that only maximal sets of that subset remain.
func restrict(items []item) (sections int32) {
	first, last := int32(math.MaxInt32), int32(0)
	for i := range items {
		first, last = min(first, items[i].lo), max(last, items[i].hi)
	}
	moments := make([]struct {
		born, died bool
		becomes    int32
	}, last-first+1)
	for i := range items {
		moments[items[i].lo-first].born = true
		moments[items[i].hi-first].died = true
	}
	born := false // a birth happened since the last death
	for t := range moments {
		m := &moments[t]
		if m.died && born {
			sections++
			born = false
		}
		m.becomes = sections
		born = born || m.born
	}
	for i := range items {
		it := &items[i]
		it.lo, it.hi = moments[it.lo-first].becomes, moments[it.hi-first].becomes
	}
	return sections
}
