package alloc

import (
	"cmp"
	"context"
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// Exact search
//
// Question: do these items fit below a capacity? Depth-first search over
// canonical packings, in which every item rests on the floor or on top of
// another: any packing can be pushed down into one.
//
// Each unplaced item has a bound, below which it cannot go, and a support,
// the top of what is placed beneath it. An item is ripe when no unplaced
// neighbour has a lower bound. Branch on a ripe item a:
//
//	left   a lies at its bound; every unplaced neighbour goes above it.
//	right  a lies higher, so it rests on a neighbour that is unplaced now:
//	       its bound rises to the lowest top one of these could have.
//
// Since ripeness is local, any ripe item will do. The search takes one near
// the section where most attempts failed so far, where a mistake shows
// soonest. MiniMalloc must continue at the globally lowest offset, and so
// interleaves decisions about unrelated moments.
//
// Example, capacity 3:   b of size 1 alive over [0,2), a of size 2 over [0,1),
// c of size 2 over [1,2). All are ripe at 0. Say a goes first: a at 0 lifts b
// to 2; now c at 0 changes nothing (b is higher already) and b lies at 2. With
// c of size 3, a at 0 and b at 2 leave no room for c, nor does any other
// place, and the section {b, c} says so at once: 1 + 3 > 3.
//
// Techniques, each with a switch in Without:
//
//	Sections   items alive together must be stacked: in order of bounds, one
//	           after another, they must end below the capacity.
//	Harmless   if placing an item raises no other bound, or it spans its whole
//	           part of time, there is no need to try it higher.
//	Twins      items of equal lifetime and size go up in a fixed order.
//	Split      when no unplaced item spans a moment, both sides are solved
//	           independently.
//	Memory     a part that failed is recognised when its unplaced items recur
//	           with the same bounds, whatever lies below.
//	Critical   branch near the section that overflowed most often, else at the
//	           lowest bound.
//	Learning   prefer items blamed for overflows; pays off with restarts.
//
// infer.go derives what an assignment of bounds implies.
//
// Weakness: many small items with loose bounds give sections slack, and
// nothing then stops the search from trying every arrangement of them.

type verdict int8

const (
	unknown verdict = iota // the node limit or the context ended the search
	fits
	impossible
)

// A searcher decides one part for one capacity. It is reused with growing
// node limits; what it learnt stays.
type searcher struct {
	items   []parts.Item
	cap     int64
	without Technique

	rank       []int32 // tie-break among ripe items: small first
	nbrAt      []int32 // neighbours of i: nbr[nbrAt[i]:nbrAt[i+1]]
	nbr        []int32
	secAt      []int32 // items of section s: sec[secAt[s]:secAt[s+1]]
	sec        []int32
	twin       []int32 // the next item of equal shape, or -1
	reserve    []int64 // size rounded up to the granule
	sectionCap int64   // capacity plus the largest padding

	bound   []int64 // lowest offset still possible; once placed, the offset
	support []int64 // top of the placed neighbours
	placed  []bool
	live    []int32 // per section: number of unplaced items
	starts  []int32 // per section: unplaced items whose first section it is
	ends    []int32 // per section: unplaced items whose last section it is

	trail []change
	dirty []int32 // sections whose required height may have grown
	stamp []int32 // marks sections in dirty
	clock int32
	arena []int32 // lists of unplaced items, one on top of another

	failed memory
	blame  []float64 // per item: how often it was in a section that overflowed
	strain []float64 // per section: how often it overflowed
	lesson float64   // weight of the next failure; recent ones count more

	ctx   context.Context
	nodes int64 // visited so far
	limit int64 // stop when nodes reaches it
}

// A change records how to undo one write.
type change struct {
	kind           changeKind
	index          int32 // of the item
	bound, support int64 // its old values
}

type changeKind int8

const (
	raised changeKind = iota
	placed
)

func newSearcher(items []parts.Item, sections int32, capacity int64, without Technique) *searcher {
	n := len(items)
	s := &searcher{items: items, cap: capacity, without: without,
		rank: make([]int32, n), twin: make([]int32, n), reserve: make([]int64, n),
		bound: make([]int64, n), support: make([]int64, n), placed: make([]bool, n),
		live: make([]int32, sections), starts: make([]int32, sections), ends: make([]int32, sections), stamp: make([]int32, sections),
		failed: newMemory(), sectionCap: capacity, clock: 1,
		lesson: 1, blame: make([]float64, n), strain: make([]float64, sections)}
	g := parts.Granule(items)
	for i := range items {
		s.reserve[i] = parts.RoundUp(items[i].Size, g)
		s.sectionCap = max(s.sectionCap, capacity+s.reserve[i]-items[i].Size)
	}
	for k, load := range parts.Loads(items, sections) {
		s.strain[k] = float64(load) / float64(capacity) // until the search knows better
	}
	s.link(sections)
	s.findTwins()
	return s
}

// link builds the lists of neighbours and of items per section.
func (s *searcher) link(sections int32) {
	n := len(s.items)
	s.secAt = make([]int32, sections+1)
	for i := range s.items {
		for k := s.items[i].Lo; k < s.items[i].Hi; k++ {
			s.secAt[k+1]++
		}
		s.count(int32(i), +1)
	}
	for k := range sections {
		s.secAt[k+1] += s.secAt[k]
	}
	s.sec = make([]int32, s.secAt[sections])
	next := slices.Clone(s.secAt)
	for i := range s.items {
		for k := s.items[i].Lo; k < s.items[i].Hi; k++ {
			s.sec[next[k]] = int32(i)
			next[k]++
		}
	}
	s.nbrAt = make([]int32, n+1)
	for i := range s.items {
		a := &s.items[i]
		for j := range s.items {
			if i != j && a.Overlaps(&s.items[j]) {
				s.nbr = append(s.nbr, int32(j))
			}
		}
		s.nbrAt[i+1] = int32(len(s.nbr))
	}
}

func (s *searcher) findTwins() {
	perm := make([]int32, len(s.items))
	for i := range perm {
		perm[i], s.twin[i] = int32(i), -1
	}
	shape := func(i, j int32) int {
		a, b := &s.items[i], &s.items[j]
		return cmp.Or(cmp.Compare(a.Lo, b.Lo), cmp.Compare(a.Hi, b.Hi), cmp.Compare(a.Size, b.Size),
			cmp.Compare(a.Align, b.Align), cmp.Compare(a.Fixed, b.Fixed))
	}
	slices.SortStableFunc(perm, shape)
	for k := 1; k < len(perm); k++ {
		if a, b := perm[k-1], perm[k]; shape(a, b) == 0 && s.items[a].Fixed < 0 {
			s.twin[a] = b
		}
	}
}

func (s *searcher) has(t Technique) bool { return s.without&t == 0 }

// decide searches for at most limit more nodes. Among equals, items that
// were blamed most so far go first, then those early in perm. After fits,
// s.bound holds the offsets.
func (s *searcher) decide(ctx context.Context, perm []int32, limit int64) verdict {
	s.ctx, s.limit = ctx, s.nodes+limit
	s.lesson *= 1.1
	all := s.arena[:0]
	for r, i := range perm {
		s.rank[i] = int32(r)
	}
	if s.has(Learning) {
		order := slices.Clone(perm)
		slices.SortStableFunc(order, func(i, j int32) int { return cmp.Compare(s.blame[j], s.blame[i]) })
		for r, i := range order {
			s.rank[i] = int32(r)
		}
	}
	for i := range s.items {
		it := &s.items[i]
		s.bound[i], s.support[i], s.placed[i] = 0, 0, false
		if it.Fixed >= 0 {
			s.bound[i] = it.Fixed
		}
		all = append(all, int32(i))
	}
	s.arena = all
	slices.SortStableFunc(all, func(i, j int32) int { return cmp.Compare(s.items[i].Lo, s.items[j].Lo) })
	for i := range s.items {
		if s.items[i].Size > s.cap-s.bound[i] {
			return impossible
		}
		s.touch(int32(i))
	}
	for i := range s.items {
		if s.has(Twins) && !s.raiseTwins(int32(i)) {
			return impossible
		}
	}
	if !s.sectionsHold() {
		return impossible
	}
	s.trail = s.trail[:0]
	v := s.solveParts(all)
	if v != fits {
		s.undo(0)
	}
	return v
}

// solveParts splits a list of unplaced items, in order of birth, at moments that
// no item spans, and solves each part, the part with the fewest items first.
func (s *searcher) solveParts(list []int32) verdict {
	if len(list) == 0 {
		return fits
	}
	if !s.has(Split) {
		return s.solve(list)
	}
	var cuts [32]int32 // starts of the parts after the first
	more := 0
	end := s.items[list[0]].Hi
	for k, i := range list {
		it := &s.items[i]
		if it.Lo >= end && more < len(cuts) {
			cuts[more] = int32(k)
			more++
		}
		end = max(end, it.Hi)
	}
	if more == 0 {
		return s.solve(list)
	}
	// Small parts first: their failure is cheapest to find.
	var order [33][2]int32
	from := int32(0)
	for k := range more + 1 {
		to := int32(len(list))
		if k < more {
			to = cuts[k]
		}
		order[k] = [2]int32{from, to}
		from = to
	}
	slices.SortFunc(order[:more+1], func(a, b [2]int32) int {
		return cmp.Or(cmp.Compare(a[1]-a[0], b[1]-b[0]), cmp.Compare(a[0], b[0]))
	})
	for _, r := range order[:more+1] {
		if v := s.solve(list[r[0]:r[1]]); v != fits {
			return v
		}
	}
	return fits
}

// solve decides one part: a list of unplaced items in order of birth. On fits
// all are placed; otherwise the state is as before.
func (s *searcher) solve(list []int32) verdict {
	mark := len(s.trail)
	var slot, check uint64
	if s.has(Memory) {
		slot, check = s.key(list)
		if s.failed.has(slot, check) {
			return impossible
		}
	}
	v := retry
	for v == retry {
		if s.nodes >= s.limit || s.nodes&1023 == 0 && s.ctx.Err() != nil {
			v = unknown
			break
		}
		s.nodes++
		v = s.branch(list)
	}
	if v == fits {
		return fits
	}
	s.undo(mark)
	if v == impossible && s.has(Memory) {
		s.failed.add(slot, check)
	}
	return v
}

// retry means that the item cannot lie at its bound, which has been raised.
const retry verdict = 3

// branch tries a ripe item at its bound and, if that fails, raises the bound.
func (s *searcher) branch(list []int32) verdict {
	i := s.ripe(list)
	it := &s.items[i]
	at := s.bound[i]
	if s.support[i] != at && it.Fixed < 0 {
		return s.lift(i) // nothing can hold it there any more
	}
	mark := len(s.trail)
	rest := len(s.arena)
	for _, j := range list {
		if j != i {
			s.arena = append(s.arena, j)
		}
	}
	child := s.arena[rest:]
	ok, harmless := s.place(i, at)
	v := impossible
	if ok {
		v = s.solveParts(child)
	}
	s.arena = s.arena[:rest]
	if v == fits {
		return fits
	}
	s.undo(mark)
	if v == unknown {
		return unknown
	}
	if it.Fixed >= 0 || s.has(Harmless) && (harmless || s.spans(it, list)) {
		return impossible
	}
	return s.lift(i)
}

// spans reports whether an item lives as long as the whole part. Items below it in
// a packing could then lie above it, shifted by its size, unless alignment or a
// fixed item forbids the shift.
func (s *searcher) spans(it *parts.Item, list []int32) bool {
	for _, j := range list {
		o := &s.items[j]
		if o.Lo < it.Lo || o.Hi > it.Hi || o.Fixed >= 0 || it.Size%o.Align != 0 {
			return false
		}
	}
	return true
}

// ripe chooses the item to branch on.
func (s *searcher) ripe(list []int32) int32 {
	if !s.has(Critical) {
		best := list[0]
		for _, i := range list[1:] {
			if s.before(i, best) {
				best = i
			}
		}
		return best
	}
	lo, hi := s.items[list[0]].Lo, int32(0)
	for _, i := range list {
		hi = max(hi, s.items[i].Hi)
	}
	worst := int32(-1)
	for k := lo; k < hi; k++ {
		if s.live[k] > 0 && (worst < 0 || s.strain[k] > s.strain[worst]) {
			worst = k
		}
	}
	best := int32(-1)
	for _, i := range s.sec[s.secAt[worst]:s.secAt[worst+1]] {
		if !s.placed[i] && (best < 0 || s.before(i, best)) {
			best = i
		}
	}
	for { // walk down to a ripe one
		from := best
		for _, j := range s.nbr[s.nbrAt[from]:s.nbrAt[from+1]] {
			if !s.placed[j] && s.before(j, best) {
				best = j
			}
		}
		if best == from {
			return best
		}
	}
}

func (s *searcher) before(i, j int32) bool {
	if s.bound[i] != s.bound[j] {
		return s.bound[i] < s.bound[j]
	}
	return s.rank[i] < s.rank[j]
}
