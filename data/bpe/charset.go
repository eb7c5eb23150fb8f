package bpe

import (
	"slices"
	"unicode"
)

// charset is a set of characters: sorted, disjoint ranges that do not touch.
type charset []runes

// runes is the characters lo <= r <= hi.
type runes struct{ lo, hi rune }

// everything is the set of all characters.
var everything = charset{{0, unicode.MaxRune}}

// setOf returns the set of some ranges in any order.
func setOf(ranges ...runes) charset {
	slices.SortFunc(ranges, func(a, b runes) int { return int(a.lo - b.lo) })
	var s charset
	for _, r := range ranges {
		if n := len(s); n > 0 && r.lo <= s[n-1].hi+1 {
			s[n-1].hi = max(s[n-1].hi, r.hi)
		} else {
			s = append(s, r)
		}
	}
	return s
}

// tables returns the union of Unicode's tables.
func tables(of ...*unicode.RangeTable) charset {
	var ranges []runes
	add := func(lo, hi, stride rune) {
		if stride == 1 {
			ranges = append(ranges, runes{lo, hi})
			return
		}
		for ; lo <= hi; lo += stride {
			ranges = append(ranges, runes{lo, lo})
		}
	}
	for _, table := range of {
		for _, r := range table.R16 {
			add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
		for _, r := range table.R32 {
			add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
	}
	return setOf(ranges...)
}

func (s charset) union(o charset) charset { return setOf(slices.Concat(s, o)...) }

// inverse returns the characters that are not in s.
func (s charset) inverse() charset {
	var out charset
	next := rune(0)
	for _, r := range s {
		if r.lo > next {
			out = append(out, runes{next, r.lo - 1})
		}
		next = r.hi + 1
	}
	if next <= unicode.MaxRune {
		out = append(out, runes{next, unicode.MaxRune})
	}
	return out
}

func (s charset) intersect(o charset) charset {
	return s.inverse().union(o.inverse()).inverse()
}

func (s charset) has(r rune) bool {
	i, _ := slices.BinarySearchFunc(s, r, func(a runes, r rune) int { return int(a.hi - r) })
	return i < len(s) && s[i].lo <= r
}

// folded adds the characters that differ from those in s in their case only: with s, also S and the long s.
func (s charset) folded() charset {
	all := slices.Clone(s)
	for _, r := range s {
		if r.hi-r.lo > 1000 {
			continue // a class such as \p{L}, which has all cases
		}
		for c := r.lo; c <= r.hi; c++ {
			for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
				all = append(all, runes{f, f})
			}
		}
	}
	return setOf(all...)
}
