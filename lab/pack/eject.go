package pack

import (
	"cmp"
	"context"
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// Ejection
//
// Approach: take a packing, lower the limit a little, and take out the items that
// reach beyond it. Put these back one at a time, the heaviest first, where the
// weight of the items they collide with is least; those are ejected in turn. An
// item weighs its area times one more than its number of ejections, so items
// that are hard to place come to own their place, and no cycle lasts. When no
// item is out, the packing is lower; continue from it.
// (Guided ejection search, Nagata and Bräysy 2009, there for vehicle routes.)
//
// From time to time everything near the next item is pushed down, or, the next
// time, up to the limit, which merges gaps too thin to be used.
//
// Example, limit 3:   b alive over [0,2), size 1, lies at 1 between a at 0 and c
// at 2, both of size 1 and alive over [0,1); d of size 2, alive over [1,2), is
// out. At 0 as well as at 1, d overlaps b and nothing else: b is ejected and d goes
// to 0. b, which now weighs twice as much, goes to the top and ejects c, and c fits
// where b was.
//
// Only items near a moment that is too high are touched, so ejection suits
// problems in which few moments decide: of 100 000 random lifetimes a hundred
// matter. An insertion takes time proportional to the number of items that
// overlap its lifetime.
//
// Weakness: where no moment has slack, chains of ejections spread over all of
// time, and little is gained.

const (
	ejectPerItem = 100_000 // effort per item, in steps of a few nanoseconds,
	ejectMost    = 2_000_000_000
	ejectStep    = 40  // the limit falls by 1/ejectStep of the distance to the target
	ejectSettle  = 200 // insertions between two settlings
	ejectCrowd   = 500 // it gives up with more than this many items out,
	ejectAlive   = 4   // plus this many times the mean number alive at once
)

// A resident is an item at its place.
type resident struct {
	off, end int64
	lo, hi   int32
	item     int32
}

func byOffset(a, b resident) int {
	if a.off != b.off {
		return cmp.Compare(a.off, b.off)
	}
	return int(a.item) - int(b.item)
}

func byEnd(a, b resident) int {
	if a.end != b.end {
		return cmp.Compare(b.end, a.end)
	}
	return int(a.item) - int(b.item)
}

// An ejector is a packing below a limit, with some items left out.
type ejector struct {
	items    []parts.Item
	sections int32
	offsets  []int64
	limit    int64
	out      []int32      // items without a place
	shelves  [][]resident // per stretch of 1<<shift sections: the items alive there, by offset
	shift    uint

	area   []float64 // per item, relative to the mean
	ousted []float64 // per item: how often it was ejected
	weight []int64   // per item
	effort int64     // steps left

	near, spare []resident // scratch of gather
	runs        []int      // ends of the sorted runs in near
	offs, ends  []mark     // scratch of insert
}

// A mark is the bottom or top of a placed item.
type mark struct {
	at, weight int64
}

// lowerByEjection lowers a packing of a part without fixed items towards target.
func lowerByEjection(ctx context.Context, l parts.Part, from parts.Packing, target, effort int64) parts.Packing {
	best := from
	e := newEjector(l, from, effort)
	most := e.crowd()
	for best.Height > target {
		e.limit = max(target, best.Height-max((best.Height-target)/ejectStep, 1))
		e.evict()
		for n := 1; len(e.out) > 0; n++ {
			if e.effort < 0 || len(e.out) > most || ctx.Err() != nil {
				return best
			}
			i := e.heaviest()
			if n%ejectSettle == 0 {
				e.settleNear(i, n/ejectSettle%2 == 1)
			}
			e.insert(i)
		}
		best = parts.Packing{Offsets: slices.Clone(e.offsets)}
		for i := range l.Items {
			best.Height = max(best.Height, best.Offsets[i]+l.Items[i].Size)
		}
	}
	return best
}

func newEjector(l parts.Part, from parts.Packing, effort int64) *ejector {
	n := len(l.Items)
	e := &ejector{items: l.Items, sections: l.Sections, offsets: slices.Clone(from.Offsets), limit: from.Height, effort: effort,
		shift: parts.ShelfShift(l.Items, l.Sections), area: make([]float64, n), ousted: make([]float64, n), weight: make([]int64, n)}
	e.shelves = make([][]resident, l.Sections>>e.shift+1)
	size, width := 0.0, 0.0
	for i := range l.Items {
		size += float64(l.Items[i].Size) / float64(n)
		width += float64(l.Items[i].Width()) / float64(n)
	}
	for i := range l.Items {
		it := &l.Items[i]
		e.area[i] = float64(it.Size) / size * float64(it.Width()) / width
		e.weigh(int32(i))
		r := e.resident(int32(i))
		for b := it.Lo >> e.shift; b <= (it.Hi-1)>>e.shift; b++ {
			e.shelves[b] = append(e.shelves[b], r)
		}
	}
	for _, s := range e.shelves {
		slices.SortFunc(s, byOffset)
	}
	return e
}

// crowd returns the number of items out beyond which the search gives up.
func (e *ejector) crowd() int {
	alive := 0
	for i := range e.items {
		alive += int(e.items[i].Width())
	}
	return ejectCrowd + ejectAlive*alive/int(e.sections)
}

func (e *ejector) resident(i int32) resident {
	it := &e.items[i]
	return resident{e.offsets[i], e.offsets[i] + it.Size, it.Lo, it.Hi, i}
}

// weigh sets the weight of an item: an integer, so that sums are exact, and small
// enough that the sum over all items does not overflow.
func (e *ejector) weigh(i int32) {
	const unit, most = 1000, 1 << 40
	e.weight[i] = 1 + int64(min(unit*e.area[i]*(1+e.ousted[i]), most))
}

// evict takes out the items that reach above the limit and cannot be pushed below it.
func (e *ejector) evict() {
	e.effort -= int64(len(e.items))
	high := func(i int) bool { return e.offsets[i]+e.items[i].Size > e.limit }
	var settled [2]int32 // the stretch just pushed down
	for i := range e.items {
		if it := &e.items[i]; high(i) && (it.Lo < settled[0] || it.Hi > settled[1]) && e.effort > 0 {
			settled[0], settled[1] = e.settleNear(int32(i), true)
		}
		if high(i) {
			e.remove(int32(i))
		}
	}
}

// heaviest removes the heaviest item from out and returns it.
func (e *ejector) heaviest() int32 {
	k := 0
	for j, i := range e.out {
		if e.weight[i] > e.weight[e.out[k]] {
			k = j
		}
	}
	last := len(e.out) - 1
	i := e.out[k]
	e.out[k] = e.out[last]
	e.out = e.out[:last]
	return i
}

func (e *ejector) remove(i int32) {
	r := e.resident(i)
	for b := r.lo >> e.shift; b <= (r.hi-1)>>e.shift; b++ {
		k, _ := slices.BinarySearchFunc(e.shelves[b], r, byOffset)
		e.shelves[b] = slices.Delete(e.shelves[b], k, k+1)
	}
	e.out = append(e.out, i)
}

func (e *ejector) place(i int32, off int64) {
	e.offsets[i] = off
	r := e.resident(i)
	for b := r.lo >> e.shift; b <= (r.hi-1)>>e.shift; b++ {
		k, _ := slices.BinarySearchFunc(e.shelves[b], r, byOffset)
		e.shelves[b] = slices.Insert(e.shelves[b], k, r)
	}
}

// listNear lists in near the items alive during [lo, hi), by offset.
func (e *ejector) listNear(lo, hi int32) {
	e.near, e.runs = e.near[:0], e.runs[:0]
	first := lo >> e.shift
	for b := first; b <= (hi-1)>>e.shift; b++ {
		for k := range e.shelves[b] {
			r := &e.shelves[b][k]
			if r.lo < hi && lo < r.hi && (b == first || r.lo>>e.shift == b) { // else it was on the shelf before
				e.near = append(e.near, *r)
			}
		}
		e.runs = append(e.runs, len(e.near))
		e.effort -= int64(len(e.shelves[b]))
	}
	for len(e.runs) > 1 {
		e.merge()
	}
}

// merge merges pairs of adjacent sorted runs of near.
func (e *ejector) merge() {
	e.effort -= int64(len(e.near))
	merged, runs, start := e.spare[:0], e.runs[:0], 0
	for k := 0; k < len(e.runs); k += 2 {
		middle, end := e.runs[k], e.runs[min(k+1, len(e.runs)-1)]
		a, b := e.near[start:middle], e.near[middle:end]
		for len(a) > 0 && len(b) > 0 {
			if a[0].off <= b[0].off {
				merged, a = append(merged, a[0]), a[1:]
			} else {
				merged, b = append(merged, b[0]), b[1:]
			}
		}
		merged = append(append(merged, a...), b...)
		runs, start = append(runs, len(merged)), end
	}
	e.near, e.spare, e.runs = merged, e.near, runs
}

// insert puts item i where it ejects the least weight; ties go to the tightest
// hole.
func (e *ejector) insert(i int32) {
	it := &e.items[i]
	e.listNear(it.Lo, it.Hi)
	e.effort -= 6 * int64(len(e.near))
	e.listEdges()
	best, cost, gap := int64(0), int64(-1), int64(0)
	consider := func(at int64, h hole, g int64) {
		if cost < 0 || h.weight < cost || h.weight == cost && g < gap {
			best, cost, gap = at, h.weight, g
		}
	}
	s := sweep{offs: e.offs, ends: e.ends, hole: hole{roof: e.limit}}
	consider(0, s.describePlace(0, it.Size, e.limit), 0)
	for _, m := range e.ends { // on top of something
		at := it.AlignUp(m.at)
		if at > e.limit-it.Size {
			break
		}
		h := s.describePlace(at, it.Size, e.limit)
		consider(at, h, h.roof-at-it.Size)
	}
	s = sweep{offs: e.offs, ends: e.ends}
	for k := range len(e.offs) + 1 { // below something, or the limit
		top := e.limit
		if k < len(e.offs) {
			top = e.offs[k].at
		}
		if top < it.Size {
			continue
		}
		at := (top - it.Size) / it.Align * it.Align
		h := s.describePlace(at, it.Size, e.limit)
		consider(at, h, at-h.floor)
	}
	for k := range e.near {
		if r := &e.near[k]; r.off < best+it.Size && best < r.end {
			e.ousted[r.item]++
			e.weigh(r.item)
			e.remove(r.item)
		}
	}
	e.place(i, best)
}

// listEdges lists the bottoms of near in offs and the tops in ends, both sorted.
func (e *ejector) listEdges() {
	offs, ends := e.offs[:0], e.ends[:0]
	for k := range e.near {
		r := &e.near[k]
		m := mark{r.end, e.weight[r.item]}
		offs = append(offs, mark{r.off, m.weight})
		ends = append(ends, m)
		b := len(ends) - 1
		for ; b > 0 && ends[b-1].at > m.at; b-- { // nearly sorted already
			ends[b] = ends[b-1]
		}
		ends[b] = m
	}
	e.offs, e.ends = offs, ends
}

// A hole describes a place: the nearest top below it, the nearest bottom above it,
// and the weight of the items that overlap it.
type hole struct {
	floor, roof int64
	weight      int64
}

// A sweep describes places of one size, visited from low to high.
type sweep struct {
	offs, ends []mark // still ahead
	hole
}

// describePlace describes the place [at, at+size) below limit.
func (s *sweep) describePlace(at, size, limit int64) hole {
	for len(s.offs) > 0 && s.offs[0].at < at+size {
		s.weight += s.offs[0].weight
		s.offs = s.offs[1:]
	}
	for len(s.ends) > 0 && s.ends[0].at <= at {
		s.weight -= s.ends[0].weight
		s.floor = s.ends[0].at
		s.ends = s.ends[1:]
	}
	s.roof = limit
	if len(s.offs) > 0 {
		s.roof = s.offs[0].at
	}
	return s.hole
}

// settleNear pushes everything near item i down, or up to the limit. Items that cross
// the ends of the stretch stay. It returns the stretch.
func (e *ejector) settleNear(i int32, down bool) (lo, hi int32) {
	it := &e.items[i]
	reach := 2*it.Width() + 2<<e.shift
	lo, hi = max(0, it.Lo-reach), min(e.sections, it.Hi+reach)
	e.listNear(lo, hi)
	e.effort -= 30 * int64(len(e.near))
	if !down {
		slices.SortFunc(e.near, byEnd)
	}
	line := parts.NewProfile(hi - lo) // height settled so far, measured from the limit when pushing up
	for k := range e.near {
		r := &e.near[k]
		o := &e.items[r.item]
		a, b := max(r.lo, lo)-lo, min(r.hi, hi)-lo
		if r.lo >= lo && r.hi <= hi {
			e.offsets[r.item] = o.AlignUp(line.Highest(a, b))
			if !down {
				e.offsets[r.item] = (e.limit - line.Highest(a, b) - o.Size) / o.Align * o.Align
			}
		}
		if down {
			line.Raise(a, b, e.offsets[r.item]+o.Size)
		} else {
			line.Raise(a, b, e.limit-e.offsets[r.item])
		}
	}
	for b := lo >> e.shift; b <= (hi-1)>>e.shift; b++ {
		s := e.shelves[b]
		for k := range s { // nearly sorted already
			r := e.resident(s[k].item)
			a := k
			for ; a > 0 && byOffset(s[a-1], r) > 0; a-- {
				s[a] = s[a-1]
			}
			s[a] = r
		}
	}
	return lo, hi
}
