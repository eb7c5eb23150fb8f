package bpe

import (
	"bytes"
	"cmp"
	"unicode"
	"unicode/utf8"
)

// Stretches: long text without a Boundary, of which no two characters alone tell where it can be cut.
//
// Approach: the text is split from its beginning as for encoding, and where that is settled, whatever follows, it can be
// cut: behind a pre-token that ends before anything depends on the text's end, or within one that is so long that it
// is merged in parts, between two parts. In the latter case what is left must be split as it was in the whole: matching
// afresh there must reach the state in which the match from the beginning is.
//
// Example, Llama 3: numbers are split into groups of three digits from their beginning, so a number of a million digits
// has no Boundary, but can be cut behind each group. A million letters are one pre-token, cut behind 65536.

// stretches are a tokenizer's, and how to cut them.
type stretches struct{ *Tokenizer }

// Cut returns the last place known at which text can be cut so that encoding both parts, the second with Continue, gives the ids of
// the whole, whatever follows text; 0 if none is known. The text begins where a text does or, if within, where one was cut. It is
// linear in the text, and meant for stretches in which no place is a Boundary.
func (t *Tokenizer) Cut(text []byte, within bool) int {
	if t.sealed == nil || t.repair != nil && !t.repair.same(text) {
		return 0
	}
	at := AtStart
	if within {
		at = Within
	}
	begin, end, behind := 0, stretches{t}.settled(text), 0
	for {
		first, after, index := t.plain.next(text, begin, begin, nil)
		if index < 0 || first >= end {
			break
		}
		begin, at = after, Behind
		if after <= end && !t.strips && !t.lasts[text[after-1]] {
			behind = after
		}
	}
	if begin >= end {
		return behind
	}
	return cmp.Or(stretches{t}.cutStretch(text, begin, end, at), behind)
}

// cutStretch is Cut for text[begin:end], in which there is no added token, at a place.
func (t stretches) cutStretch(text []byte, begin, end int, at Place) int {
	stretch := text[begin:end]
	e := &Encoder{t: t.Tokenizer, leads: make([][]byte, len(t.steps))}
	changed, k := e.normalize(stretch, at), 0
	if _, index := t.normalized.find(changed, 0, nil); index >= 0 {
		return 0
	}
	for ; k < len(t.steps) && t.steps[k].auto == nil; k++ {
		changed = e.led(&t.steps[k], changed, k, at)
	}
	lead := len(changed) - len(stretch) // a space may have been put before it
	if lead < 0 || lead > 1 || !bytes.Equal(changed[lead:], stretch) || lead == 1 && changed[0] != ' ' {
		return 0
	}
	places := t.places(changed, k)
	for i := len(places) - 1; i >= 0 && places[i] > lead; i-- {
		if place := begin + places[i] - lead; t.severable(text, place) {
			return place
		}
	}
	return 0
}

// Cut is the method of tokenizers, for the text that a tokenizer is trained on.
func (p Pattern) Cut(text []byte, _ bool) int {
	t := stretches{&Tokenizer{steps: []step{p.step()}}}
	places := t.places(text[:t.settled(text)], 0)
	if len(places) == 0 {
		return 0
	}
	return places[len(places)-1]
}

// settled returns how much of text consists of whole characters that are not in an added token of which more follows.
func (t stretches) settled(text []byte) int {
	more := utf8.UTFMax
	for _, f := range []*finder{&t.plain, &t.normalized} {
		for i := range f.tokens {
			more = max(more, len(f.tokens[i].Text))
		}
	}
	n := max(0, len(text)-more)
	for n > 0 && !utf8.RuneStart(text[n]) && n > len(text)-more-utf8.UTFMax {
		n--
	}
	if t.strips { // such a token may take the white space before it
		n = len(bytes.TrimRightFunc(text[:n], unicode.IsSpace))
	}
	return n
}

// places returns places, in order, at which a stretch can be cut to which the steps from k on apply, however it goes on.
func (t stretches) places(text []byte, k int) []int {
	if k == len(t.steps) {
		return t.wordPlaces(text)
	}
	s := &t.steps[k]
	if end := s.settled(text); end > 0 {
		return []int{end}
	}
	if end := s.auto.least(text); end > 0 { // a match, which may be longer
		return s.auto.afresh(text, t.places(text[:end], k+1))
	}
	places := t.places(text[:s.auto.gap(text)], k+1)
	for len(places) > 0 && !s.auto.absent(text[:places[len(places)-1]]) {
		places = places[:len(places)-1]
	}
	return places
}

// settled returns the end of one of the last pieces of text that end there whatever follows; 0: none is known.
func (s *step) settled(text []byte) int {
	var far scan
	var ends []int
	for all := (pieces{step: s, text: text, far: &far}); ; {
		p, ok := all.piece()
		if !ok || far.open || p.end == len(text) {
			break
		}
		if ends = append(ends, p.end); len(ends) == 2*fewPlaces {
			ends = append(ends[:0], ends[fewPlaces:]...)
		}
	}
	for i := len(ends) - 1; i >= max(0, len(ends)-fewPlaces); i-- {
		if s.endsAlike(text, ends[i]) {
			return ends[i]
		}
	}
	return 0
}

// fewPlaces is how many places are tried, each in linear time.
const fewPlaces = 4

// endsAlike reports whether the pieces of text[:at] are those of text that end there.
func (s *step) endsAlike(text []byte, at int) bool {
	var far, far2 scan
	begin := 0 // of the first piece for which the end was looked at
	for short := (pieces{step: s, text: text[:at], far: &far}); begin < at; {
		p, ok := short.piece()
		if !ok || far.open {
			break
		}
		begin = p.end
	}
	far.reset()
	short, long := pieces{step: s, text: text[:at], far: &far, at: begin}, pieces{step: s, text: text, far: &far2, at: begin}
	for begin < at {
		p, ok := short.piece()
		q, ok2 := long.piece()
		if !ok || !ok2 || p != q {
			return false
		}
		begin = p.end
	}
	return true
}

// wordPlaces returns the places at which a pre-token is cut before its tokens are merged.
func (t stretches) wordPlaces(text []byte) (places []int) {
	at := 0
	if t.chars != nil && t.parted {
		for n := t.joints.word(text); n < len(text)-at; n = t.joints.word(text[at:]) {
			at += n
			places = append(places[:0], at)
		}
	}
	for len(text)-at > maxWord+utf8.UTFMax {
		at += t.part(text[at:])
		places = append(places, at)
	}
	return places
}

// part returns the length of the first part of a word longer than maxWord that is merged on its own.
func (t *Tokenizer) part(word []byte) int {
	n := maxWord
	for !utf8.RuneStart(word[n]) && n > maxWord-utf8.UTFMax {
		n--
	}
	if t.chars == nil {
		return n
	}
	return t.lastJoint(word, n)
}

// least returns the end of a match at the beginning of text that later characters can only make longer; 0: there is none.
func (a *automaton) least(text []byte) (end int) {
	a.follow(text, func(i, _, _ int, entry uint16) {
		if entry&hit != 0 {
			end = i
		}
	})
	return end
}

// afresh returns those of some places within the match at the beginning of text at which a match that begins there ends
// where the whole one does, and the one before it there.
func (a *automaton) afresh(text []byte, places []int) (same []int) {
	end, last := a.least(text), a.classes-1
	a.follow(text, func(i, state, _ int, _ uint16) {
		if len(places) == 0 || i != places[0] {
			return
		}
		places = places[1:]
		if a.rows[state*a.classes+last]&hit != 0 && a.meet(text[i:end], state) {
			same = append(same, i)
		}
	})
	return same
}

// meet reports whether matching from a state, and matching afresh, come to be in the same one before text ends, up to
// which the match goes.
func (a *automaton) meet(text []byte, state int) bool {
	fresh := begin
	for i := 0; i < len(text) && state != fresh; {
		r, width := utf8.DecodeRune(text[i:])
		class := int(a.class(r))
		state, fresh = int(a.rows[state*a.classes+class]&^hit), int(a.rows[fresh*a.classes+class]&^hit)
		i += width
	}
	return state == fresh && state != dead
}

// follow calls f for each character of a match that begins with text: its place, the state, its class and the entry that it chooses.
func (a *automaton) follow(text []byte, f func(i, state, class int, entry uint16)) {
	for i, state := 0, begin; i < len(text) && state != dead; {
		r, width := utf8.DecodeRune(text[i:])
		class := int(a.class(r))
		entry := a.rows[state*a.classes+class]
		f(i, state, class, entry)
		state = int(entry &^ hit)
		i += width
	}
}

// absent reports whether there is no match in text.
func (a *automaton) absent(text []byte) bool {
	var far scan
	for i := 0; i < len(text); {
		if a.match(text, i, &far) >= 0 {
			return false
		}
		_, width := utf8.DecodeRune(text[i:])
		i += width
	}
	return true
}

// gap returns the last place of text up to which no match begins, whatever follows.
func (a *automaton) gap(text []byte) (last int) {
	var far scan
	for i := 0; i < len(text); {
		if a.match(text, i, &far) >= 0 || far.open {
			break
		}
		last = i
		_, width := utf8.DecodeRune(text[i:])
		i += width
	}
	return last
}
