package alloc

import (
	"cmp"
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

// compress turns buffers into items; sections counts the maximal sets.
func compress(buffers []Buffer) (items []parts.Item, sections int32) {
	n := len(buffers)
	births, deaths := make([]event, n), make([]event, n)
	items = make([]parts.Item, n)
	for i := range buffers {
		b := &buffers[i]
		births[i], deaths[i] = event{b.Lower, int32(i)}, event{b.Upper, int32(i)}
		items[i] = parts.Item{Size: b.Size, Align: b.align(), Fixed: b.Fixed, Index: int32(i)}
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
