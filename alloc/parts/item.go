// Package parts has what packers work on: buffers as items whose lifetimes are ranges of
// sections, and two ways to keep the height of what is placed, Profile and Niches. Package
// alloc cuts its problems into parts; other packers can lower them (alloc.Improver).
package parts

import "math"

// An Item is a buffer as the solvers see it.
type Item struct {
	Lo, Hi int32 // sections [Lo, Hi)
	Size   int64
	Align  int64 // >= 1
	Fixed  int64 // >= 0 pinned, else negative
	Index  int32 // of the buffer in the problem
	Peak   int64 // largest load among its sections, if somebody filled it in
}

// Overlaps reports whether both are alive in some section.
func (a *Item) Overlaps(b *Item) bool { return a.Lo < b.Hi && b.Lo < a.Hi }

// Width returns the lifetime in sections.
func (a *Item) Width() int32 { return a.Hi - a.Lo }

// AlignUp rounds an offset up to the item's alignment.
func (a *Item) AlignUp(off int64) int64 {
	if a.Align == 1 {
		return off
	}
	if r := off % a.Align; r != 0 {
		off += a.Align - r
	}
	return off
}

// A Part is items over sections [0, Sections), to be packed by themselves, from offset Base up.
type Part struct {
	Items    []Item
	Sections int32
	Base     int64
}

// A Packing is a candidate answer for a list of items.
type Packing struct {
	Offsets []int64 // parallel to the items, above Base
	Height  int64
}

// Restrict renumbers the sections of a subset of items, in place and in linear
// time, so that only maximal sets of that subset remain.
func Restrict(items []Item) (sections int32) {
	first, last := int32(math.MaxInt32), int32(0)
	for i := range items {
		first, last = min(first, items[i].Lo), max(last, items[i].Hi)
	}
	moments := make([]struct {
		born, died bool
		becomes    int32
	}, last-first+1)
	for i := range items {
		moments[items[i].Lo-first].born = true
		moments[items[i].Hi-first].died = true
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
		it.Lo, it.Hi = moments[it.Lo-first].becomes, moments[it.Hi-first].becomes
	}
	return sections
}

// ShelfShift divides the sections into stretches of equal length (a power of
// two, 1<<shift), as short as possible while an item touches few of them on
// average.
func ShelfShift(items []Item, sections int32) (shift uint) {
	const spread = 4
	for ; ; shift++ {
		var touched int64
		for i := range items {
			touched += int64((items[i].Hi-1)>>shift - items[i].Lo>>shift + 1)
		}
		if touched <= spread*int64(len(items)) || sections>>shift == 0 {
			return shift
		}
	}
}
