package bpe

import (
	"bytes"
	"encoding/binary"
	"unicode"
	"unicode/utf8"
)

// Encoding.
//
// Approach: natural text repeats its words, so a small cache from pre-token to
// ids answers most of the time; the rest is merged. Up to shortWord tokens the
// merge looks for the lowest rank by scanning an array, which beats anything
// clever at that size. Longer ones keep a linked list of tokens and a heap of
// candidate pairs: O(n log n), whatever the text.
//
// Example: " lower" starts as " ", l, o, w, e, r; the ranks of GPT-2 merge
// e+r, " "+l, o+w, " l"+ow, " low"+er in that order and leave one token.
//
// Known weakness: pre-tokens over maxWord bytes are cut (see the package doc).

const (
	shortWord = 48      // tokens that are merged by scanning
	maxWord   = 1 << 16 // bytes of a pre-token that are merged as one

	cacheLog  = 14 // slots of the cache: 16384 of 48 bytes
	cacheWord = 16 // longest pre-token in the cache, in bytes
	cacheIDs  = 6  // most ids of one pre-token in the cache
)

// cacheSlot holds one pre-token of up to cacheWord bytes, zero padded in low
// and high, and its ids.
type cacheSlot struct {
	low, high uint64
	length    uint8 // of the pre-token; 0: free
	count     uint8 // of the ids
	ids       [cacheIDs]int32
}

// Encoder encodes text with the scratch memory of one goroutine.
type Encoder struct {
	t           *Tokenizer
	cache       []cacheSlot
	short       [shortWord]link
	long        longWord
	text, spare []byte   // normalized text
	far         []scan   // of each step
	leads       [][]byte // of each step, a piece with a space before it
	paths       []bestTo
	ways        []int
}

// NewEncoder returns an Encoder, which is not safe for concurrent use.
func (t *Tokenizer) NewEncoder() *Encoder {
	return &Encoder{t: t, cache: make([]cacheSlot, 1<<cacheLog), far: make([]scan, len(t.steps)), leads: make([][]byte, len(t.steps))}
}

// Encode appends the ids of text to dst and returns it. Added tokens such as
// "<|endoftext|>" in the text become that one token. The ids are those that
// Hugging Face's encode gives with add_special_tokens=False.
func (e *Encoder) Encode(dst []int32, text []byte) []int32 {
	dst, _ = e.Part(dst, text, AtStart, nil)
	return dst
}

// Continue is Encode for text that continues another: vocabularies that put a space before
// a text put none before this one.
func (e *Encoder) Continue(dst []int32, text []byte) []int32 {
	dst, _ = e.Part(dst, text, Within, nil)
	return dst
}

// Place is where a stretch of text between added tokens is.
type Place uint8

const (
	AtStart Place = iota // of the text
	Behind               // an added token
	Taken                // behind an added token that takes the white space after it
	Within               // a text
)

// Part is Encode for a part of a text at a given place, and returns the place after it. If control is not nil,
// what looks like a special token, text[first:end], is one only if control says so; added tokens that are
// content, such as <think>, are tokens everywhere.
func (e *Encoder) Part(dst []int32, text []byte, at Place, control func(first, end int) bool) ([]int32, Place) {
	from := 0
	if at == Taken {
		from = len(text) - len(bytes.TrimLeftFunc(text, unicode.IsSpace))
		if from == len(text) {
			return dst, Taken
		}
		at = Behind
	}
	for search := from; from < len(text); {
		first, end, index := e.t.plain.next(text, from, search, control)
		if first > from {
			dst, at = e.stretch(dst, text[from:first], at, control, from)
		}
		if index < 0 {
			return dst, at
		}
		added := &e.t.plain.tokens[index]
		dst, at = append(dst, added.ID), Behind
		if added.RightStrip {
			at = Taken
		}
		if from = end; from < len(text) && at == Taken {
			at = Behind
		}
		search = end
	}
	return dst, at
}

// stretch appends the ids of text between added tokens that are looked for in the text as it is, and returns the place
// after it. offset is that of text in the whole.
func (e *Encoder) stretch(dst []int32, text []byte, at Place, control func(first, end int) bool, offset int) ([]int32, Place) {
	raw := text
	if r := e.t.repair; r != nil && !r.same(text) {
		text = r.apply(nil, text, at)
	}
	text = e.normalize(text, at)
	if e.t.normalized.starts == nil {
		return e.split(dst, text, 0, at), Within
	}
	if control != nil {
		control = tracked(raw, text, offset, control)
	}
	for from, search := 0, 0; from < len(text); {
		first, end, index := e.t.normalized.next(text, from, search, control)
		if first > from {
			dst, at = e.split(dst, text[from:first], 0, at), Within
		}
		if index < 0 {
			break
		}
		dst, at = append(dst, e.t.normalized.tokens[index].ID), Behind
		from, search = end, end
	}
	return dst, at
}

// tracked is control for a normalized text: what stands in it for the n-th time also stands in the text itself, which
// begins at offset, for the n-th time.
func tracked(raw, normalized []byte, offset int, control func(first, end int) bool) func(first, end int) bool {
	type place struct{ raw, normalized int } // of the latest
	latest := map[string]place{}
	return func(first, end int) bool {
		token := bytes.TrimSpace(normalized[first:end])
		p, ok := latest[string(token)]
		if !ok {
			p = place{-1, -1}
		}
		for p.normalized < first {
			next, next2 := bytes.Index(raw[p.raw+1:], token), bytes.Index(normalized[p.normalized+1:], token)
			if next < 0 || next2 < 0 {
				return false
			}
			p.raw, p.normalized = p.raw+1+next, p.normalized+1+next2
		}
		latest[string(token)] = p
		return control(offset+p.raw, offset+p.raw+len(token))
	}
}

// EncodeOrdinary is Encode for text in which added tokens have no meaning:
// they are encoded as the characters they are written with.
func (e *Encoder) EncodeOrdinary(dst []int32, text []byte) []int32 {
	if r := e.t.repair; r != nil && !r.same(text) {
		text = r.apply(nil, text, AtStart)
	}
	return e.split(dst, e.normalize(text, AtStart), 0, AtStart)
}

// word appends the ids of the pre-token text[:n]. It may load the bytes after it,
// but ignores them.
func (e *Encoder) word(dst []int32, text []byte, n int) []int32 {
	if n > cacheWord {
		return e.merge(dst, text[:n])
	}
	if n == 1 && e.t.chars == nil {
		return append(dst, e.t.byteID[text[0]])
	}
	low, high := load(text, n)
	slot := &e.cache[mix(low^mix(high^uint64(n)))>>(64-cacheLog)]
	if slot.low == low && slot.high == high && int(slot.length) == n {
		return append(dst, slot.ids[:slot.count]...)
	}
	start := len(dst)
	dst = e.merge(dst, text[:n])
	if ids := dst[start:]; len(ids) <= cacheIDs {
		slot.low, slot.high, slot.length, slot.count = low, high, uint8(n), uint8(len(ids))
		copy(slot.ids[:], ids)
	}
	return dst
}

// load returns the first n <= 16 bytes of text as two little-endian words.
func load(text []byte, n int) (low, high uint64) {
	if len(text) < cacheWord {
		var padded [cacheWord]byte
		copy(padded[:], text[:n])
		return binary.LittleEndian.Uint64(padded[:]), binary.LittleEndian.Uint64(padded[8:])
	}
	low, high = binary.LittleEndian.Uint64(text), binary.LittleEndian.Uint64(text[8:])
	if n <= 8 {
		return low & (^uint64(0) >> (64 - 8*n)), 0
	}
	return low, high & (^uint64(0) >> (128 - 8*n))
}

// merge appends the ids of one pre-token, bypassing the cache.
func (e *Encoder) merge(dst []int32, word []byte) []int32 {
	for len(word) > maxWord {
		n := e.t.part(word)
		dst = e.merge(dst, word[:n])
		word = word[n:]
	}
	if e.t.unigram != nil {
		return e.unigram(dst, word)
	}
	if e.t.whole != nil {
		if id, ok := e.t.whole[string(word)]; ok {
			return append(dst, id)
		}
	}
	if len(word) <= shortWord {
		return e.mergeShort(dst, word)
	}
	return e.long.merge(dst, e.t, word)
}

// link is a token and the rank of merging it with the next one.
type link struct {
	id   int32
	rank uint32
	into int32 // the token that the merge produces
}

// begin writes the tokens from which the merges of a word start, and returns them: its bytes or, in a
// vocabulary of characters, its characters, and the bytes of characters that have no token.
func (t *Tokenizer) begin(links []link, word []byte) []link {
	if t.chars == nil {
		for i, b := range word {
			links[i].id = t.byteID[b]
		}
		return links
	}
	n := 0
	unknown := false // the last character was
	for len(word) > 0 {
		r, width := utf8.DecodeRune(word)
		id, ok := t.chars[r]
		switch ok = ok && (r != utf8.RuneError || width > 1); {
		case ok:
			links[n].id = id
			n++
		case t.spelled(word[:width]):
			for _, b := range word[:width] {
				links[n].id = t.byteID[b]
				n++
			}
			ok = true
		case !unknown || !t.fuse:
			links[n].id = t.unknown
			n++
		}
		unknown = !ok
		word = word[width:]
	}
	return links[:n]
}

// spelled reports whether there are tokens for all bytes of a character.
func (t *Tokenizer) spelled(character []byte) bool {
	for _, b := range character {
		if t.byteID[b] < 0 {
			return false
		}
	}
	return true
}

func (e *Encoder) mergeShort(dst []int32, word []byte) []int32 {
	t := e.t
	links := t.begin(e.short[:len(word)], word)
	last := len(links) - 1
	links[last].rank = noRank
	for i := range links[:last] {
		links[i].rank, links[i].into = t.pairs.find(links[i].id, links[i+1].id)
	}
	for {
		best, rank := 0, noRank
		for i := range links {
			if links[i].rank < rank {
				best, rank = i, links[i].rank
			}
		}
		if rank == noRank {
			break
		}
		into := links[best].into
		copy(links[best+1:], links[best+2:])
		links = links[:len(links)-1]
		here := &links[best]
		here.id, here.rank = into, noRank
		if best+1 < len(links) {
			here.rank, here.into = t.pairs.find(into, links[best+1].id)
		}
		if best > 0 {
			before := &links[best-1]
			before.rank, before.into = t.pairs.find(before.id, into)
		}
	}
	for i := range links {
		dst = append(dst, links[i].id)
	}
	return dst
}

// longWord merges by a linked list over positions in the word and a heap of
// rank<<32 | position. A heap entry is stale if the pair at its position now has
// another rank (a rank belongs to one pair only).
type longWord struct {
	links []link
	next  []int32 // position of the next token; len(links): none
	prev  []int32 // position of the previous token; -1: none
	heap  []uint64
}

func (w *longWord) merge(dst []int32, t *Tokenizer, word []byte) []int32 {
	n := len(word)
	if cap(w.links) < n {
		w.links, w.next, w.prev = make([]link, n), make([]int32, n), make([]int32, n)
	}
	w.links = t.begin(w.links[:n], word)
	n = len(w.links)
	w.next, w.prev, w.heap = w.next[:n], w.prev[:n], w.heap[:0]
	for i := range w.links {
		w.next[i], w.prev[i] = int32(i+1), int32(i-1)
	}
	for i := range w.links {
		w.rank(t, int32(i))
	}
	for len(w.heap) > 0 {
		top := w.pop()
		place := int32(uint32(top))
		here := &w.links[place]
		if here.rank != uint32(top>>32) {
			continue
		}
		gone := w.next[place]
		here.id = here.into
		w.links[gone].rank = noRank
		w.next[place] = w.next[gone]
		if after := w.next[place]; int(after) < n {
			w.prev[after] = place
		}
		w.rank(t, place)
		if before := w.prev[place]; before >= 0 {
			w.rank(t, before)
		}
	}
	for i := 0; i < n; i = int(w.next[i]) {
		dst = append(dst, w.links[i].id)
	}
	return dst
}

// rank looks up the pair that starts at place and queues it.
func (w *longWord) rank(t *Tokenizer, place int32) {
	here := &w.links[place]
	here.rank = noRank
	if after := w.next[place]; int(after) < len(w.links) {
		here.rank, here.into = t.pairs.find(here.id, w.links[after].id)
	}
	if here.rank != noRank {
		w.push(uint64(here.rank)<<32 | uint64(uint32(place)))
	}
}

func (w *longWord) push(entry uint64) {
	w.heap = append(w.heap, entry)
	h := w.heap
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if h[parent] <= h[i] {
			return
		}
		h[parent], h[i] = h[i], h[parent]
		i = parent
	}
}

func (w *longWord) pop() uint64 {
	h := w.heap
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	w.heap = h
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return top
		}
		if child+1 < last && h[child+1] < h[child] {
			child++
		}
		if h[i] <= h[child] {
			return top
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}
