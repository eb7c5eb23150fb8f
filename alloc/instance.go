package alloc

import (
	"cmp"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
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

// dense is how many moments per buffer are looked at one by one. Programs have few: a buffer is born every few steps.
const dense = 64

// compress turns buffers into items; sections counts the maximal sets.
func compress(buffers []Buffer) (items []parts.Item, sections int32) {
	items = make([]parts.Item, len(buffers))
	first, last := int64(math.MaxInt64), int64(math.MinInt64)
	for i := range buffers {
		b := &buffers[i]
		first, last = min(first, b.Lower), max(last, b.Upper)
		items[i] = parts.Item{Size: b.Size, Align: b.align(), Fixed: b.Fixed, Index: int32(i)}
	}
	if span := uint64(last) - uint64(first); len(buffers) == 0 || span > min(dense*uint64(len(buffers)), math.MaxInt32) {
		return items, sortTimes(buffers, items)
	}
	for i := range buffers {
		items[i].Lo, items[i].Hi = int32(buffers[i].Lower-first), int32(buffers[i].Upper-first)
	}
	return items, parts.Restrict(items)
}

// sortTimes sets the items' lifetimes to sections, whose number it returns, wherever the buffers' times are.
func sortTimes(buffers []Buffer, items []parts.Item) (sections int32) {
	n := len(buffers)
	births, deaths := make([]event, n), make([]event, n)
	for i := range buffers {
		births[i], deaths[i] = event{buffers[i].Lower, int32(i)}, event{buffers[i].Upper, int32(i)}
	}
	sortEvents(births)
	sortEvents(deaths)
	born := false // a birth happened since the last death
	for d, b := 0, 0; d < n; {
		if b < n && births[b].time < deaths[d].time {
			items[births[b].index].Lo = sections
			born = true
			b++
			continue
		}
		if born {
			sections++
			born = false
		}
		items[deaths[d].index].Hi = sections
		d++
	}
	return sections
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
