package bpe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// SentencePiece's BPE, as in Llama 2, Mistral 7B and Gemma 3.
//
// Approach: such a vocabulary consists of characters, not bytes. It writes a space as ▁,
// puts one before a text, and merges across the whole text. A character without a token
// becomes its bytes, the tokens <0x00> to <0xFF>, which never merge. Here ▁ is replaced
// by a space at once. No token has a space after another character (this is checked), so
// no merge crosses the start of a space, and a text can be merged word by word like
// byte-level ones.
//
// Example: "no caf\u00e9" is " no caf\u00e9", words " no" and " caf\u00e9"; without \u00e9 in the
// vocabulary the second starts as " ", c, a, f, <0xC3>, <0xA9>.
//
// Known weakness: documents are not read in pieces, so each is in memory as a whole.

// underline stands for a space in the vocabulary and in tokenizer.json.
const underline = "\u2581"

// leading says where a space is inserted. A stretch is text between added tokens.
type leading uint8

const (
	leadNever  leading = iota
	leadAlways         // before each stretch
	leadEach           // before each stretch that does not begin with a space
	leadFirst          // the same, but only at the beginning of the text
)

// before reports whether a stretch gets a space; first says that it begins the text.
func (l leading) before(text []byte, first bool) bool {
	switch l {
	case leadAlways:
		return true
	case leadEach, leadFirst:
		return (first || l == leadEach) && text[0] != ' '
	}
	return false
}

// spaced appends the ids of a stretch of text between added tokens.
func (e *Encoder) spaced(dst []int32, text []byte, at Place) []int32 {
	if len(text) == 0 {
		return dst
	}
	text = bytes.ReplaceAll(text, []byte(underline), []byte{' '})
	e.composed = e.composed[:0]
	if at != Within && e.t.leading.before(text, at == AtStart) {
		e.composed = append(e.composed, ' ')
	}
	e.composed = append(e.composed, text...)
	for text = e.composed; len(text) > 0; {
		n := nextSpaced(text, e.t.breaks)
		dst = e.word(dst, text, n)
		text = text[n:]
	}
	return dst
}

// nextSpaced returns the length of the first word of text: leading spaces and what follows,
// up to the next character of breaks. These include a line break if no longer token contains one, since then
// nothing merges across it, and shorter words hit the cache more often.
func nextSpaced(text []byte, breaks string) int {
	n := len(text) - len(bytes.TrimLeft(text, " "))
	if end := bytes.IndexAny(text[n:], breaks); end >= 0 {
		return max(n+end, 1)
	}
	return len(text)
}

// Trim removes the leading space from text returned by Decode, if the tokenizer's decoder
// does so.
func (t *Tokenizer) Trim(text []byte) []byte {
	if t.trims {
		return bytes.TrimPrefix(text, []byte{' '})
	}
	return text
}

// spacedToken returns the bytes that a vocabulary token stands for, and whether it is a
// byte token (<0x00> to <0xFF>).
func spacedToken(text string) (token []byte, isByte bool, err error) {
	if digits, ok := strings.CutPrefix(text, "<0x"); ok && len(digits) == 3 && digits[2] == '>' {
		if b, err := strconv.ParseUint(digits[:2], 16, 8); err == nil {
			return []byte{byte(b)}, true, nil
		}
	}
	token = []byte(strings.ReplaceAll(text, underline, " "))
	if len(token) == 0 || strings.Contains(text, " ") || bytes.Contains(bytes.TrimLeft(token, " "), []byte{' '}) {
		return nil, false, unsupported(fmt.Sprintf("the vocabulary's token %q, which is empty or has a space after other characters,", text))
	}
	return token, false, nil
}

// addSpaced indexes a vocabulary token that merges may start from. A longer token with
// a line break removes the line break from breaks.
func (v *vocabulary) addSpaced(token []byte, isByte bool, id int32) {
	if r, width := utf8.DecodeRune(token); isByte {
		v.bytes[token[0]] = id
	} else if width == len(token) {
		v.chars[r] = id
	} else if bytes.IndexByte(token, '\n') >= 0 {
		v.breaks = " "
	}
}

// readSpacing reads the parts of a converted SentencePiece tokenizer: the normalizer or
// Metaspace that inserts a space before the text, and the decoder that may remove it.
func (v *vocabulary) readSpacing(f *file) error {
	v.chars, v.breaks = map[rune]int32{}, " \n"
	for i := range v.bytes {
		v.bytes[i] = -1
	}
	decoders, err := steps(f.Decoder, "decoders")
	if err != nil {
		return err
	}
	switch strings.Join(decoders, " ") {
	case `{"content":" ","pattern":{"String":"▁"},"type":"Replace"} {"type":"ByteFallback"} {"type":"Fuse"} {"content":" ","start":1,"stop":0,"type":"Strip"}`:
		v.trims = true
	case `{"content":" ","pattern":{"String":"▁"},"type":"Replace"} {"type":"ByteFallback"} {"type":"Fuse"}`:
	default:
		return unsupported(fmt.Sprintf("with byte_fallback, the decoder %q", decoders))
	}
	normalizers, err := steps(f.Normalizer, "normalizers")
	if err != nil {
		return err
	}
	splitters, err := steps(f.PreTokenizer, "pretokenizers")
	if err != nil {
		return err
	}
	const replace = `{"content":"▁","pattern":{"String":" "},"type":"Replace"}`
	const split = `{"behavior":"MergedWithPrevious","invert":false,"pattern":{"String":" "},"type":"Split"}` // at spaces, none of which are left
	switch all := slices.Concat(normalizers, splitters); strings.Join(all, " ") {
	case `{"prepend":"▁","type":"Prepend"} ` + replace:
		v.leading = leadAlways
	case `{"prepend_scheme":"always","replacement":"▁","split":false,"type":"Metaspace"}`:
		v.leading = leadEach
	case `{"prepend_scheme":"first","replacement":"▁","split":false,"type":"Metaspace"}`:
		v.leading = leadFirst
	case `{"prepend_scheme":"never","replacement":"▁","split":false,"type":"Metaspace"}`, replace, replace + " " + split:
		v.leading = leadNever
	default:
		return unsupported(fmt.Sprintf("with byte_fallback, the normalizer and pre_tokenizer %q", all))
	}
	for _, a := range f.AddedTokens {
		if a.Normalized {
			return unsupported(fmt.Sprintf("with byte_fallback, the added token %q with normalized", a.Content))
		}
	}
	return nil
}

// steps returns the parts of a sequence, or the single part, or none, as canonical JSON:
// keys sorted, no white space.
func steps(raw json.RawMessage, name string) ([]string, error) {
	parts := []any{}
	if !null(raw) {
		var part map[string]any
		if err := json.Unmarshal(raw, &part); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		parts = []any{part}
		if list, ok := part[name].([]any); ok {
			parts = list
		}
	}
	var list []string
	for _, part := range parts {
		text, err := json.Marshal(part)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		list = append(list, string(text))
	}
	return list, nil
}
