package parts

// A Profile holds a height per section, with "highest over a range" and
// "raise a range to h, which is no lower than its highest" in O(log n).
// Because heights only rise, no lazy push is needed: a node's own value is a
// floor for its whole range, top the highest value inside it.
type Profile struct {
	leaves int32
	floor  []int64
	top    []int64
}

// NewProfile returns heights of 0.
func NewProfile(sections int32) *Profile {
	leaves := int32(1)
	for leaves < sections {
		leaves *= 2
	}
	return &Profile{leaves, make([]int64, 2*leaves), make([]int64, 2*leaves)}
}

// Highest returns the largest height in [lo, hi).
func (s *Profile) Highest(lo, hi int32) int64 {
	var h int64
	l, r := lo+s.leaves, hi+s.leaves
	for l < r {
		if l&1 == 1 {
			h = max(h, s.top[l])
			l++
		}
		if r&1 == 1 {
			r--
			h = max(h, s.top[r])
		}
		l, r = l/2, r/2
	}
	for l = (lo + s.leaves) / 2; l >= 1; l /= 2 {
		h = max(h, s.floor[l])
	}
	for r = (hi - 1 + s.leaves) / 2; r >= 1; r /= 2 {
		h = max(h, s.floor[r])
	}
	return h
}

// Raise sets the heights in [lo, hi) to h, which is no lower than any of them.
func (s *Profile) Raise(lo, hi int32, h int64) {
	l, r := lo+s.leaves, hi+s.leaves
	for l < r {
		if l&1 == 1 {
			s.floor[l], s.top[l] = h, h
			l++
		}
		if r&1 == 1 {
			r--
			s.floor[r], s.top[r] = h, h
		}
		l, r = l/2, r/2
	}
	for l = (lo + s.leaves) / 2; l >= 1; l /= 2 {
		s.top[l] = max(s.top[l], h)
	}
	for r = (hi - 1 + s.leaves) / 2; r >= 1; r /= 2 {
		s.top[r] = max(s.top[r], h)
	}
}

// ProfileOf returns a profile with the given heights.
func ProfileOf(heights []int64) *Profile {
	s := NewProfile(int32(len(heights)))
	copy(s.top[s.leaves:], heights)
	for k := s.leaves - 1; k >= 1; k-- {
		s.top[k] = max(s.top[2*k], s.top[2*k+1])
	}
	return s
}
