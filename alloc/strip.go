package alloc

import (
	"cmp"
	"slices"
)

// Strips
//
// Where several pieces of one size end as several others of that size begin,
// nothing at that moment tells which belong together. Pieces further away do: a
// wheel closes only if its five strips, each of one or more abutting pieces, are
// the right ones. So while glueing is careful, doubtful seams are left open and
// wheels of strips are sought; each wheel found settles its seams, and so rules
// out their rivals. Seams still open at the end are glued at random, or not at all.
//
// Example: a and b of size 1 end at moment 7, c and d of size 1 begin there. A
// wheel lacks its bottom, of size 1, from where a begins to where d ends: a and d
// are glued, into the wheel, and b and c now have no rivals.

const (
	stripLength = 4   // most pieces in a strip
	stripMost   = 24  // strips that begin with one piece, about
	stripBorn   = 100 // most strips that begin at a moment; with more, none is considered
	stripReach  = 3   // how many pieces before a change a newly possible wheel may begin
)

// A strip is several pieces of one size that abut in a row.
type strip struct {
	lo, hi int32
	size   int64
	of     []int32
}

// A stripWheel holds the strips in the places of a wheel.
type stripWheel [5]*strip

// strips finds strips among the whole pieces and remembers them by moment.
type strips struct {
	*gluing
	known map[int32][]strip
}

// from lists the strips that begin at a moment.
func (s *strips) from(t int32) []strip {
	list, ok := s.known[t]
	if ok {
		return list
	}
	for _, i := range s.born[t] {
		p, first := &s.pieces[i], len(list)
		list = append(list, strip{p.lo, p.hi, p.size, []int32{i}})
		for k := first; k < len(list) && len(list[k].of) < stripLength && len(list)-first < stripMost; k++ {
			c := list[k]
			for _, j := range s.starts[edge{c.hi, c.size}] {
				list = append(list, strip{c.lo, s.pieces[j].hi, c.size, append(slices.Clip(c.of), j)})
			}
		}
		if len(list) > stripBorn {
			list = nil
			break
		}
	}
	s.known[t] = list
	return list
}

// wheels lists the wheels of strips that begin at a moment.
func (s *strips) wheels(t int32) (found []stripWheel) {
	born := s.from(t)
	ends := map[int32][]*strip{}
	for k := range born {
		ends[born[k].hi] = append(ends[born[k].hi], &born[k])
	}
	for k := range born {
		left := &born[k]
		inner := s.from(left.hi)
		for c := range inner {
			centre := &inner[c]
			if centre.size >= left.size {
				continue
			}
			for _, bottom := range ends[centre.hi] {
				found = s.close(found, stripWheel{wheelLeft: left, wheelCentre: centre, wheelBottom: bottom}, inner)
			}
		}
	}
	return found
}

// close completes a wheel that lacks right and top, in every possible way, and
// appends the results to found. inner lists the strips that begin with the centre.
func (s *strips) close(found []stripWheel, w stripWheel, inner []strip) []stripWheel {
	left, centre, bottom := w[wheelLeft], w[wheelCentre], w[wheelBottom]
	outer := s.from(centre.hi)
	for r := range outer {
		right := &outer[r]
		if right.size != bottom.size+centre.size {
			continue
		}
		for t := range inner {
			if top := &inner[t]; top.hi == right.hi && top.size+centre.size == left.size {
				w[wheelRight], w[wheelTop] = right, top
				if n := len(slices.Compact(slices.Sorted(w.all()))); n == w.length() {
					found = append(found, w)
				}
			}
		}
	}
	return found
}

// all yields the pieces of a wheel.
func (w *stripWheel) all() func(yield func(int32) bool) {
	return func(yield func(int32) bool) {
		for _, s := range w {
			for _, i := range s.of {
				if !yield(i) {
					return
				}
			}
		}
	}
}

// length counts the pieces of a wheel: fewer make it less doubtful.
func (w *stripWheel) length() (n int) {
	for _, s := range w {
		n += len(s.of)
	}
	return n
}

// joinStripWheels glues wheels of strips near changed moments and reports whether there was
// one.
func (g *gluing) joinStripWheels() bool {
	s := &strips{g, map[int32][]strip{}}
	var found []stripWheel
	for _, t := range g.momentsInReach() {
		found = append(found, s.wheels(t)...)
	}
	g.touched = g.touched[:0]
	slices.SortStableFunc(found, func(v, w stripWheel) int { return cmp.Compare(v.length(), w.length()) })
	before := g.linked
	for _, w := range found {
		if slices.ContainsFunc(slices.Collect(w.all()), func(i int32) bool { return g.at[i] < 0 }) {
			continue
		}
		j, ok := joint{how: wheel}, true
		for k := 0; k < len(w) && ok; k++ {
			j.of[k], ok = g.joinStrip(w[k].of)
		}
		if ok && g.join(j) {
			g.linked += w.length()
		}
	}
	return g.linked > before
}

// momentsInReach lists the changed moments and the earlier ones from which a wheel could
// reach them.
func (g *gluing) momentsInReach() []int32 {
	seen := map[int32]bool{}
	next := slices.Clone(g.touched)
	for range stripReach + 1 {
		from := next
		next = nil
		for _, t := range from {
			if seen[t] {
				continue
			}
			seen[t] = true
			for _, i := range g.died[t] {
				next = append(next, g.pieces[i].lo)
			}
		}
	}
	moments := make([]int32, 0, len(seen))
	for t := range seen {
		moments = append(moments, t)
	}
	slices.Sort(moments)
	return moments
}

// joinStrip glues the pieces of a strip into one. ok is false if alignments forbid it.
func (g *gluing) joinStrip(of []int32) (i int32, ok bool) {
	i = of[0]
	for _, j := range of[1:] {
		if !g.join(joint{how: abut, of: [5]int32{i, j}}) {
			return i, false
		}
		i = int32(len(g.pieces) - 1)
	}
	return i, true
}
