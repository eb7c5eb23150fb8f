package bpe

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Added is a token that is cut out of the text before the text is split.
type Added struct {
	ID      int32
	Text    string
	Special bool // a control token, not content
	// LeftStrip and RightStrip say that the white space before it and after it belongs to it.
	LeftStrip, RightStrip bool
	// SingleWord says that there may be no letter, number or the like next to it.
	SingleWord bool
	// Normalized says that it is looked for in the normalized text, and is normalized itself.
	Normalized bool
	// inner says that nothing is put before it when it is normalized.
	inner bool
}

// finder finds added tokens in a text. It records the pairs of bytes that they begin with, so that text without them
// is searched at memory speed.
type finder struct {
	tokens []Added             // longest first
	starts []uint64            // the pairs, one bit each; nil: there are no tokens
	from   map[uint16][]uint16 // by pair, the tokens that begin with it, longest first
	lead   int                 // the byte that all of them begin with; -1: they begin with several
}

func newFinder(tokens []Added) (f finder) {
	if len(tokens) == 0 {
		return f
	}
	f = finder{tokens, make([]uint64, 1<<16/64), map[uint16][]uint16{}, int(tokens[0].Text[0])}
	sort.SliceStable(tokens, func(i, j int) bool { return len(tokens[i].Text) > len(tokens[j].Text) })
	for index, added := range tokens {
		if int(added.Text[0]) != f.lead {
			f.lead = -1
		}
		first := int(added.Text[0]) << 8
		low, high := first, first+255 // a token of one byte: whatever follows
		if len(added.Text) > 1 {
			low = first + int(added.Text[1])
			high = low
		}
		for two := low; two <= high; two++ {
			f.starts[two/64] |= 1 << (two % 64)
			f.from[uint16(two)] = append(f.from[uint16(two)], uint16(index))
		}
	}
	return f
}

// find returns the offset and the index of the first token in text at or after from, the longest if several start
// there; index -1: none. Special tokens count only where control, if not nil, says so.
func (f *finder) find(text []byte, from int, control func(first, end int) bool) (at, index int) {
	if f.starts == nil {
		return len(text), -1
	}
	for i := from; i < len(text); i++ {
		i = f.skip(text, i)
		index := f.startsAt(text, i, control)
		if index < 0 {
			continue
		}
		end := i + len(f.tokens[index].Text)
		if !f.tokens[index].SingleWord || alone(text, i, end) {
			return i, index
		}
		i = end - 1 // as elsewhere, no other token begins within it
	}
	return len(text), -1
}

// skip returns the first offset from i on at which a token may begin, or one behind which none does.
func (f *finder) skip(text []byte, i int) int {
	if f.lead >= 0 {
		n := bytes.IndexByte(text[i:], byte(f.lead))
		if n < 0 {
			return len(text)
		}
		return i + n
	}
	for ; i+1 < len(text); i++ {
		if two := int(text[i])<<8 | int(text[i+1]); f.starts[two/64]&(1<<(two%64)) != 0 {
			break
		}
	}
	return i
}

// startsAt returns the index of the longest token that begins at text[i], or -1.
func (f *finder) startsAt(text []byte, i int, control func(first, end int) bool) int {
	if f.starts == nil || i >= len(text) {
		return -1
	}
	two := int(text[i]) << 8
	if i+1 < len(text) {
		two |= int(text[i+1])
	}
	if f.starts[two/64]&(1<<(two%64)) == 0 {
		return -1
	}
	for _, index := range f.from[uint16(two)] {
		added := &f.tokens[index]
		end := i + len(added.Text)
		if end <= len(text) && string(text[i:end]) == added.Text && (control == nil || !added.Special || control(i, end)) {
			return int(index)
		}
	}
	return -1
}

// next is find for a text whose tokens may take white space: it returns the bytes of the token with that space, which
// does not begin before from.
func (f *finder) next(text []byte, from, search int, control func(first, end int) bool) (first, end, index int) {
	first, index = f.find(text, search, control)
	if index < 0 {
		return len(text), len(text), -1
	}
	added := &f.tokens[index]
	end = first + len(added.Text)
	if added.LeftStrip {
		first = max(min(from, first), len(bytes.TrimRightFunc(text[:first], unicode.IsSpace)))
	}
	if added.RightStrip {
		end = len(text) - len(bytes.TrimLeftFunc(text[end:], unicode.IsSpace))
	}
	return first, end, index
}

// alone reports whether text[first:end] has no character of a word next to it.
func alone(text []byte, first, end int) bool {
	before, size := utf8.DecodeLastRune(text[:first])
	after, size2 := utf8.DecodeRune(text[end:])
	return (size == 0 || !inWord(before)) && (size2 == 0 || !inWord(after))
}

// inWord reports whether a character is a part of words: \w of UTS 18.
func inWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.In(r, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}

// FindSpecial returns the first special token in text and where it ends, without white space that it takes; ok is false
// if there is none.
func (t *Tokenizer) FindSpecial(text []byte) (id int32, end int, ok bool) {
	for _, f := range []*finder{&t.plain, &t.normalized} {
		for at := 0; ; {
			first, index := f.find(text, at, nil)
			if index < 0 {
				break
			}
			if stop := first + len(f.tokens[index].Text); !f.tokens[index].Special {
				at = stop
			} else {
				if !ok || stop < end {
					id, end, ok = f.tokens[index].ID, stop, true
				}
				break
			}
		}
	}
	return id, end, ok
}

// indexAdded prepares the search for the added tokens.
func (t *Tokenizer) indexAdded() error {
	sort.SliceStable(t.added, func(i, j int) bool { return len(t.added[i].Text) > len(t.added[j].Text) })
	var plain, normalized []Added
	// Without a normalizer one search finds all, unless what a token takes with it may be part of another.
	together := len(t.normal) == 0 && !slices.ContainsFunc(t.added, func(a Added) bool { return a.LeftStrip || a.RightStrip || a.SingleWord })
	for _, added := range t.added {
		if added.Text == "" {
			return fmt.Errorf("added token %d is empty", added.ID)
		}
		if together || !added.Normalized {
			plain = append(plain, added)
			continue
		}
		e := &Encoder{t: t}
		at := AtStart
		if added.inner {
			at = Within
		}
		if added.Text = string(e.normalize([]byte(added.Text), at)); added.Text != "" {
			normalized = append(normalized, added)
		}
	}
	if len(t.added) > 1<<16 {
		return fmt.Errorf("there are %d added tokens, more than %d", len(t.added), 1<<16)
	}
	t.plain, t.normalized = newFinder(plain), newFinder(normalized)
	return nil
}

// Reach returns where text[:at], the part before a cut, must end so that it does not matter that both parts are encoded
// on their own: a token behind the cut may take the white space before it.
func (e *Encoder) Reach(text []byte, at int, control func(first, end int) bool) int {
	next := len(text) - len(bytes.TrimLeftFunc(text[at:], unicode.IsSpace))
	for _, f := range []*finder{&e.t.plain, &e.t.normalized} {
		if index := f.startsAt(text, next, control); index >= 0 && f.tokens[index].LeftStrip {
			return len(bytes.TrimRightFunc(text[:at], unicode.IsSpace))
		}
	}
	return at
}

// inside records the pairs of adjacent bytes within added tokens, between which a text must not be cut, and reports
// whether a text may be cut at all.
func (t *Tokenizer) inside() (pairs map[[2]byte]bool, ok bool) {
	pairs = map[[2]byte]bool{}
	for _, f := range []*finder{&t.plain, &t.normalized} {
		for _, a := range f.tokens {
			last, _ := utf8.DecodeLastRuneInString(a.Text)
			if a.SingleWord || (a.LeftStrip || a.RightStrip) && inWord(last) {
				return nil, false
			}
			if a.LeftStrip || a.RightStrip {
				t.strips = true
			}
			t.lasts[a.Text[len(a.Text)-1]] = true
			for i := range len(a.Text) - 1 {
				pairs[[2]byte{a.Text[i], a.Text[i+1]}] = true
			}
			text := strings.ReplaceAll(a.Text, underline, " ")
			for i := range len(text) - 1 {
				pairs[[2]byte{text[i], text[i+1]}] = true
			}
		}
	}
	return pairs, true
}
