package parts

import "math"

// Niches is a skyline: segments of sections with a floor, named by their
// first section. Adjacent floors differ.
type Niches struct {
	Sections int32
	Floor    []int64
	End      []int32 // one past the last section
	Prev     []int32 // start of the segment to the left, or -1
	here     int32   // the segment that changed last
}

// NewNiches returns a skyline of height 0.
func NewNiches(sections int32) *Niches {
	return NichesOf(make([]int64, sections))
}

// NichesOf returns a skyline with the given height per section.
func NichesOf(floor []int64) *Niches {
	sections := int32(len(floor))
	n := &Niches{Sections: sections, Floor: make([]int64, sections), End: make([]int32, sections), Prev: make([]int32, sections)}
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

// Copy makes n equal to from, reusing its memory.
func (n *Niches) Copy(from *Niches) {
	n.Sections, n.here = from.Sections, from.here
	n.Floor = append(n.Floor[:0], from.Floor...)
	n.End = append(n.End[:0], from.End...)
	n.Prev = append(n.Prev[:0], from.Prev...)
}

// Valley returns a niche. It walks downhill from the last change, in amortised
// constant time, since the segments it passes are filled on the way back.
func (n *Niches) Valley() int32 {
	for {
		floor := n.Floor[n.here]
		l, r := n.Prev[n.here], n.End[n.here]
		switch {
		case l >= 0 && n.Floor[l] < floor:
			n.here = l
		case r < n.Sections && n.Floor[r] < floor:
			n.here = r
		default:
			return n.here
		}
	}
}

// NextBelow moves to the first segment from section s on whose floor is below level,
// and returns it, or n.Sections if there is none.
func (n *Niches) NextBelow(level int64, s int32) int32 {
	lo := n.here
	for lo > s {
		lo = n.Prev[lo]
	}
	for lo < n.Sections && n.Floor[lo] >= level {
		lo = n.End[lo]
	}
	if lo < n.Sections {
		n.here = lo
	}
	return lo
}

// add makes [lo, hi) a segment, replacing the one that started at lo.
func (n *Niches) add(lo, hi, prev int32, floor int64) {
	n.Floor[lo], n.End[lo], n.Prev[lo] = floor, hi, prev
	if hi < n.Sections {
		n.Prev[hi] = lo
	}
	n.here = lo
}

// Lift raises a niche to its lower wall and returns by how much.
func (n *Niches) Lift(lo int32) int64 {
	floor := n.Floor[lo]
	wall := int64(math.MaxInt64)
	if l := n.Prev[lo]; l >= 0 {
		wall = n.Floor[l]
	}
	if r := n.End[lo]; r < n.Sections {
		wall = min(wall, n.Floor[r])
	}
	n.set(lo, n.End[lo], wall)
	return wall - floor
}

// Build puts an item with the given top on [from, to) of the segment at lo.
func (n *Niches) Build(lo, from, to int32, top int64) {
	hi, floor := n.End[lo], n.Floor[lo]
	prev := n.Prev[lo]
	if lo < from {
		n.add(lo, from, prev, floor)
		prev = lo
	}
	if to < hi {
		n.add(to, hi, from, floor)
	}
	n.Prev[from] = prev
	n.set(from, to, top)
}

// set gives a segment its floor and joins it to neighbours of equal floor.
func (n *Niches) set(lo, hi int32, floor int64) {
	if l := n.Prev[lo]; l >= 0 && n.Floor[l] == floor {
		lo = l
	}
	if hi < n.Sections && n.Floor[hi] == floor {
		hi = n.End[hi]
	}
	n.add(lo, hi, n.Prev[lo], floor)
}
