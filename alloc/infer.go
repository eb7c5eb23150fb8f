package alloc

// Inference
//
// Placing an item or raising a bound has consequences: neighbours go above it,
// twins keep their order, and the unplaced items of every affected section must
// still fit below the capacity. All changes are recorded on a trail, so that they
// can be undone.
//
// Weakness: a section is judged by itself, as if its items could be stacked in
// the order of their bounds whatever happens in the next one.

// place puts item i at its bound, at. ok is false if a neighbour or a section has
// no room left; harmless is true if no neighbour's bound rose.
func (s *searcher) place(i int32, at int64) (ok, harmless bool) {
	it := &s.items[i]
	s.clearDirty()
	s.count(i, -1)
	s.trail = append(s.trail, change{kind: placed, index: i})
	top := at + it.Size
	ok, harmless = true, true
	for _, j := range s.nbr[s.nbrAt[i]:s.nbrAt[i+1]] {
		if s.placed[j] {
			continue
		}
		o := &s.items[j]
		up := o.AlignUp(top)
		if s.support[j] >= up {
			continue
		}
		harmless = harmless && s.bound[j] >= up
		s.trail = append(s.trail, change{raised, j, s.bound[j], s.support[j]})
		s.support[j] = up
		if s.bound[j] < up {
			s.bound[j] = up
			if up > s.cap-o.Size || o.Fixed >= 0 && up > o.Fixed {
				return false, false
			}
			s.touch(j)
			if s.has(Twins) && !s.raiseTwins(j) {
				return false, false
			}
		}
	}
	return s.sectionsHold(), harmless
}

// count marks item i unplaced (by +1) or placed (by -1).
func (s *searcher) count(i int32, by int32) {
	it := &s.items[i]
	s.placed[i] = by < 0
	s.starts[it.Lo] += by
	s.ends[it.Hi-1] += by
	for k := it.Lo; k < it.Hi; k++ {
		s.live[k] += by
	}
}

// lift raises the bound of item i, which was excluded there, to the lowest top an
// unplaced neighbour could have. It returns retry, or impossible.
func (s *searcher) lift(i int32) verdict {
	it := &s.items[i]
	at := int64(-1)
	for _, j := range s.nbr[s.nbrAt[i]:s.nbrAt[i+1]] {
		if s.placed[j] {
			continue
		}
		if top := s.bound[j] + s.items[j].Size; at < 0 || top < at {
			at = top
		}
	}
	if at < 0 {
		return impossible
	}
	at = it.AlignUp(at)
	if at > s.cap-it.Size {
		return impossible
	}
	s.clearDirty()
	s.trail = append(s.trail, change{raised, i, s.bound[i], s.support[i]})
	s.bound[i] = at
	s.touch(i)
	if s.has(Twins) && !s.raiseTwins(i) || !s.sectionsHold() {
		return impossible
	}
	return retry
}

// raiseTwins keeps the twins after i above it. It reports false if one has no room.
func (s *searcher) raiseTwins(i int32) bool {
	for j := s.twin[i]; j >= 0; i, j = j, s.twin[j] {
		if s.placed[j] {
			continue
		}
		up := s.items[j].AlignUp(s.bound[i] + s.items[i].Size)
		if s.bound[j] >= up {
			return true
		}
		if up > s.cap-s.items[j].Size {
			return false
		}
		s.trail = append(s.trail, change{raised, j, s.bound[j], s.support[j]})
		s.bound[j] = up
		s.touch(j)
	}
	return true
}

// touch marks the sections of item i to be checked.
func (s *searcher) touch(i int32) {
	for k := s.items[i].Lo; k < s.items[i].Hi; k++ {
		if s.stamp[k] != s.clock {
			s.stamp[k] = s.clock
			s.dirty = append(s.dirty, k)
		}
	}
}

func (s *searcher) clearDirty() {
	s.dirty = s.dirty[:0]
	s.clock++
}

// sectionsHold stacks the unplaced items of each dirty section in order of
// their bounds and reports whether all end below the capacity.
func (s *searcher) sectionsHold() bool {
	ok := true
	for _, k := range s.dirty {
		if s.ends[k] == 0 || k > 0 && s.starts[k] == 0 && s.ends[k-1] > 0 {
			continue // an adjacent section has all of its unplaced items too
		}
		list := s.sec[s.secAt[k]:s.secAt[k+1]]
		// The order of the last visit is nearly right: insertion sort.
		for a := 1; a < len(list); a++ {
			i, b := list[a], a
			for ; b > 0 && s.bound[list[b-1]] > s.bound[i]; b-- {
				list[b] = list[b-1]
			}
			list[b] = i
		}
		var top int64
		for _, i := range list {
			if !s.placed[i] {
				top = max(top, s.bound[i]) + s.reserve[i]
			}
		}
		if top > s.sectionCap && s.has(Sections) {
			ok = false
			s.learn(k, list)
			break
		}
	}
	s.clearDirty()
	return ok
}

// learn blames an overflow on section k and on its unplaced items.
func (s *searcher) learn(k int32, list []int32) {
	s.strain[k] += s.lesson
	s.lesson *= 1.001
	for _, i := range list {
		if !s.placed[i] {
			s.blame[i] += s.lesson
		}
	}
	if s.lesson < 1e100 {
		return
	}
	for i := range s.blame {
		s.blame[i] /= 1e100
	}
	for k := range s.strain {
		s.strain[k] /= 1e100
	}
	s.lesson /= 1e100
}

func (s *searcher) undo(mark int) {
	for k := len(s.trail) - 1; k >= mark; k-- {
		c := &s.trail[k]
		switch c.kind {
		case raised:
			s.bound[c.index], s.support[c.index] = c.bound, c.support
		case placed:
			s.count(c.index, +1)
		}
	}
	s.trail = s.trail[:mark]
}
