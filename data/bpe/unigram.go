package bpe

import (
	"math"
	"unicode/utf8"
)

// Unigram models (Kudo 2018), SentencePiece's other kind: each token has the logarithm of its probability, and a text
// becomes the tokens whose sum is largest.
//
// Approach: Viterbi's algorithm over the bytes of a word. The best sum that ends at a byte comes from the tokens that
// end there, which a trie finds. Linear in the text times the longest token.

// unknownPenalty is how much less probable than the rarest token a character is that has none.
const unknownPenalty = 10

// unigram is the model. It is immutable.
type unigram struct {
	scores  []float64
	unknown float64          // of a character without a token
	next    map[uint64]int32 // trie: node and byte to node
	ends    []int32          // by node, the token that ends there; -1: none
}

// newUnigram builds the trie of all tokens that text can have.
func newUnigram(tokens [][]byte, scores []float64, skip func(id int32) bool) *unigram {
	u := &unigram{scores: scores, next: map[uint64]int32{}, ends: []int32{-1}}
	least := math.Inf(1)
	for id, token := range tokens {
		if id < len(scores) {
			least = min(least, scores[id])
		}
		if id >= len(scores) || len(token) == 0 || skip(int32(id)) {
			continue
		}
		node := int32(0)
		for _, b := range token {
			key := uint64(node)<<8 | uint64(b)
			to, ok := u.next[key]
			if !ok {
				to = int32(len(u.ends))
				u.next[key] = to
				u.ends = append(u.ends, -1)
			}
			node = to
		}
		u.ends[node] = int32(id)
	}
	u.unknown = least - unknownPenalty
	return u
}

// bestTo is the best way to get to a byte of a word.
type bestTo struct {
	sum   float64
	first int   // where its last token begins; -1: there is no way
	id    int32 // -1: a character without a token
}

// unigram appends the ids of a word.
func (e *Encoder) unigram(dst []int32, word []byte) []int32 {
	u := e.t.unigram
	if cap(e.paths) <= len(word) {
		e.paths = make([]bestTo, len(word)+1)
	}
	paths := e.paths[:len(word)+1]
	for i := range paths {
		paths[i].first = -1
	}
	paths[0] = bestTo{}
	for at := 0; at < len(word); {
		_, width := utf8.DecodeRune(word[at:])
		single, node := false, int32(0)
		from := paths[at].sum
		for i := at; i < len(word); i++ {
			to, ok := u.next[uint64(node)<<8|uint64(word[i])]
			if !ok {
				break
			}
			node = to
			if id := u.ends[node]; id >= 0 {
				if p := &paths[i+1]; p.first < 0 || from+u.scores[id] > p.sum {
					*p = bestTo{from + u.scores[id], at, id}
				}
				single = single || i+1 == at+width
			}
		}
		if p := &paths[at+width]; !single && (p.first < 0 || from+u.unknown > p.sum) {
			*p = bestTo{from + u.unknown, at, -1}
		}
		at += width
	}
	return e.collect(dst, word, paths)
}

// collect appends the tokens of the best way through a word, which it finds from the end.
func (e *Encoder) collect(dst []int32, word []byte, paths []bestTo) []int32 {
	e.ways = e.ways[:0]
	for at := len(word); at > 0; at = paths[at].first {
		e.ways = append(e.ways, at)
	}
	unknown := false
	for i := len(e.ways) - 1; i >= 0; i-- {
		end := e.ways[i]
		p := paths[end]
		if p.id >= 0 {
			dst = append(dst, p.id)
			unknown = false
			continue
		}
		if e.t.byteID[word[p.first]] >= 0 {
			for _, b := range word[p.first:end] {
				dst = append(dst, e.t.byteID[b])
			}
		} else if !unknown || !e.t.fuse {
			dst = append(dst, e.t.unknown)
			unknown = true
		}
	}
	return dst
}
