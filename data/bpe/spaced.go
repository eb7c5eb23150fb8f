package bpe

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Vocabularies of characters, as SentencePiece makes them: Llama 2, Mistral 7B, Gemma 3.
//
// Approach: such a vocabulary consists of characters, not bytes. It writes a space as ▁,
// puts one before a text, and merges across the whole text. A character without a token
// becomes its bytes, the tokens <0x00> to <0xFF>, which never merge, or the unknown token. Here ▁ is replaced
// by a space at once. Hardly any token has a space after another character, so
// no merge crosses the start of a space that is not after one of the few such characters, and a text can be merged
// word by word like byte-level ones. Of scripts that are written without spaces, a text is one word. There it can be cut
// between any two characters that are neighbours in no token.
//
// Example: "no caf\u00e9" is " no caf\u00e9", words " no" and " caf\u00e9"; without \u00e9 in the
// vocabulary the second starts as " ", c, a, f, <0xC3>, <0xA9>.

// underline stands for a space in the vocabulary and in tokenizer.json.
const underline = "\u2581"

// joints are the places at which words of a vocabulary of characters end.
type joints struct {
	spaces [256]bool // a space behind this byte is within some token
	lines  bool      // words end before a line break too: no longer token has one
	inside []uint64  // pairs of characters that are neighbours in a token, and a few others, see pairBit
}

// pairsLog is the size of joints.inside in bits: large vocabularies have some 300,000 pairs.
const pairsLog = 22

// pairBit returns the bit of joints.inside for a pair of characters. Others that share it cost a place to cut, and no more.
func pairBit(before, after rune) uint64 {
	return mix(uint64(before)<<32|uint64(after)) >> (64 - pairsLog)
}

// newJoints returns the places at which no token crosses into a space or a line break, or from one character to another.
func newJoints(tokens [][]byte) (j joints) {
	j.lines, j.inside = true, make([]uint64, 1<<pairsLog/64)
	for _, token := range tokens {
		before, width := utf8.DecodeRune(token)
		for rest := token[width:]; len(rest) > 0; rest = rest[width:] {
			var after rune
			after, width = utf8.DecodeRune(rest)
			bit := pairBit(before, after)
			j.inside[bit/64] |= 1 << (bit % 64)
			before = after
		}
		if len(token) > 1 && bytes.IndexByte(token, '\n') >= 0 {
			j.lines = false
		}
		for i := 1; i < len(token); i++ {
			if token[i] == ' ' && token[i-1] != ' ' {
				j.spaces[token[i-1]] = true
			}
		}
	}
	return j
}

// word returns the length of the first word of text: leading spaces and what follows, up to the next place where
// words end.
func (j *joints) word(text []byte) int {
	n := 0
	for n < len(text) && text[n] == ' ' {
		n++
	}
	for i := n; i < len(text); i++ {
		if b := text[i]; i > 0 && (b == ' ' && text[i-1] != ' ' && !j.spaces[text[i-1]] || b == '\n' && j.lines) {
			return i
		}
	}
	return len(text)
}

// separable reports whether no token has one character behind the other, nor are both unknown and become one token.
func (t *Tokenizer) separable(before, after rune) bool {
	if before == utf8.RuneError || after == utf8.RuneError { // which bytes that are no characters look like
		return false
	}
	bit := pairBit(before, after)
	return t.joints.inside[bit/64]&(1<<(bit%64)) == 0 && (!t.fuse || t.known(before) || t.known(after))
}

// known reports whether a character has a token, or its bytes have.
func (t *Tokenizer) known(r rune) bool {
	_, ok := t.chars[r]
	return ok || t.spelled(utf8.AppendRune(nil, r))
}

// lastJoint returns the last place in a word's first n bytes where it can be merged apart, or n.
func (t *Tokenizer) lastJoint(word []byte, n int) int {
	for i := n; i > 0; {
		after, _ := utf8.DecodeRune(word[i:])
		before, width := utf8.DecodeLastRune(word[:i])
		if t.separable(before, after) {
			return i
		}
		i -= width
	}
	return n
}

// words appends the ids of a pre-token.
func (e *Encoder) words(dst []int32, text []byte) []int32 {
	if e.t.chars == nil {
		return e.word(dst, text, len(text))
	}
	for len(text) > 0 {
		n := len(text)
		if e.t.parted {
			n = e.t.joints.word(text)
		}
		dst = e.word(dst, text, n)
		text = text[n:]
	}
	return dst
}

// Trim removes the leading space from text returned by Decode, if the tokenizer's decoder
// does so.
func (t *Tokenizer) Trim(text []byte) []byte {
	if t.trims {
		return bytes.TrimPrefix(text, []byte{' '})
	}
	return text
}

// byteToken returns the byte that the tokens <0x00> to <0xFF> stand for.
func byteToken(text string) (b byte, ok bool) {
	digits, ok := strings.CutPrefix(text, "<0x")
	if !ok || len(digits) != 3 || digits[2] != '>' {
		return 0, false
	}
	value, err := strconv.ParseUint(digits[:2], 16, 8)
	return byte(value), err == nil
}

// readSpaced reads a token of a vocabulary of characters. A token with a space of its own, where spaces are written as
// ▁, is one that no text has.
func (v *vocabulary) readSpaced(text string, id int32) {
	if b, ok := byteToken(text); ok && v.fallback {
		v.tokens[id] = []byte{b}
		v.bytes[b] = id
		return
	}
	v.tokens[id] = []byte(text)
	if v.underlined {
		if strings.Contains(text, " ") {
			v.unreached[id] = true
			return
		}
		v.tokens[id] = []byte(strings.ReplaceAll(text, underline, " "))
	}
	if r, width := utf8.DecodeRune(v.tokens[id]); width == len(v.tokens[id]) && width > 0 {
		v.chars[r] = id
	}
}
