package jinja

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Char is a character and who wrote it: a rune, perhaps | foreign, | generated.
type Char int32

const (
	foreign   Char = 1 << 30 // came in a variable
	generated Char = 1 << 29 // in a generation block
)

// Rune returns the character.
func (c Char) Rune() rune { return rune(c &^ (foreign | generated)) }

// withRune returns r, by the same writer as c.
func (c Char) withRune(r rune) Char { return Char(r) | c&(foreign|generated) }

// Text is a string that records for each character whether the template wrote it.
type Text []Char

// Own returns a text as if a template had written it.
func Own(s string) Text {
	t := make(Text, 0, len(s))
	for _, r := range s {
		t = append(t, Char(r))
	}
	return t
}

// Foreign returns a text that comes from elsewhere: what looks like a control token in it is not one.
func Foreign(s string) Text {
	t := Own(s)
	for i := range t {
		t[i] |= foreign
	}
	return t
}

// String returns the characters.
func (t Text) String() string {
	var b strings.Builder
	b.Grow(len(t))
	for _, c := range t {
		b.WriteRune(c.Rune())
	}
	return b.String()
}

// Span is the bytes First <= i < End of a string.
type Span struct{ First, End int }

// Split returns the text as UTF-8, and the stretches of it that the template wrote, ascending
// and apart.
func (t Text) Split() (text []byte, own []Span) {
	text = make([]byte, 0, len(t))
	for _, c := range t {
		first := len(text)
		text = fmt.Append(text, string(c.Rune()))
		if c&foreign != 0 {
			continue
		}
		if n := len(own); n > 0 && own[n-1].End == first {
			own[n-1].End = len(text)
		} else {
			own = append(own, Span{first, len(text)})
		}
	}
	return text, own
}

// Generated returns the stretches that generation blocks wrote, in characters.
func (t Text) Generated() (spans []Span) {
	for i, c := range t {
		if c&generated == 0 {
			continue
		}
		if n := len(spans); n > 0 && spans[n-1].End == i {
			spans[n-1].End++
		} else {
			spans = append(spans, Span{i, i + 1})
		}
	}
	return spans
}

// HasPrefix reports whether the text begins with another, written by the same.
func (t Text) HasPrefix(p Text) bool { return len(p) <= len(t) && slices.Equal(t[:len(p)], p) }

// Common returns the length of the common prefix of two texts.
func (t Text) Common(u Text) int {
	n := 0
	for n < min(len(t), len(u)) && t[n] == u[n] {
		n++
	}
	return n
}

// same reports whether the characters are equal, whoever wrote them.
func (t Text) same(u Text) bool {
	return len(t) == len(u) && t.compare(u) == 0
}

func (t Text) compare(u Text) int {
	return slices.CompareFunc(t, u, func(a, b Char) int { return int(a.Rune()) - int(b.Rune()) })
}

// index returns where u first occurs in t at or after from, or -1, in time linear in both
// (Knuth, Morris and Pratt).
func (t Text) index(u Text, from int) int {
	if len(u) == 0 && from <= len(t) {
		return from
	}
	back := make([]int, len(u)) // back[i]: how long an end of u[:i+1] is also its beginning
	for i, n := 1, 0; i < len(u); i++ {
		n = u.match(back, n, u[i])
		back[i] = n
	}
	for i, n := from, 0; i < len(t); i++ {
		if n = u.match(back, n, t[i]); n == len(u) {
			return i + 1 - n
		}
	}
	return -1
}

// match returns how much of t is matched after another character c, if n characters were before it.
func (t Text) match(back []int, n int, c Char) int {
	for n > 0 && t[n].Rune() != c.Rune() {
		n = back[n-1]
	}
	if t[n].Rune() == c.Rune() {
		n++
	}
	return n
}

// first is the index of the first u in t, or -1.
func (t Text) first(u Text) int { return t.index(u, 0) }

// last is the index of the last u in t, or -1.
func (t Text) last(u Text) int {
	at := reversed(t).index(reversed(u), 0)
	if at < 0 {
		return -1
	}
	return len(t) - len(u) - at
}

// space reports whether Python's str.isspace holds for a character.
func space(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// ends says from which ends of a text something is removed.
type ends uint8

const (
	left ends = 1 << iota
	right
)

// strip removes characters of a set, or white space if the set is nil.
func (t Text) strip(set Text, from ends) Text {
	listed := make(map[rune]bool, len(set))
	for _, c := range set {
		listed[c.Rune()] = true
	}
	drop := func(c Char) bool { return set == nil && space(c.Rune()) || listed[c.Rune()] }
	for from&left != 0 && len(t) > 0 && drop(t[0]) {
		t = t[1:]
	}
	for from&right != 0 && len(t) > 0 && drop(t[len(t)-1]) {
		t = t[:len(t)-1]
	}
	return t
}

// mapped returns the text with each character replaced.
func (t Text) mapped(f func(i int, r rune) rune) Text {
	out := make(Text, len(t))
	for i, c := range t {
		out[i] = c.withRune(f(i, c.Rune()))
	}
	return out
}

func reversed(t Text) Text {
	t = slices.Clone(t)
	slices.Reverse(t)
	return t
}

// Said returns where the last foreign character ends, 0 if there is none.
func (t Text) Said() int {
	for i := len(t); i > 0; i-- {
		if t[i-1]&foreign != 0 {
			return i
		}
	}
	return 0
}
