package generation

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"unicode/utf8"
)

// Request is a prompt and how to continue it.
type Request struct {
	Prompt   []int32
	Tokens   int // to add, at most
	Sampling Sampling
	Stop     []string // texts that end the text, and are left out of it
	Ends     []int32  // tokens that do, besides the model's
	// Logprobs is how many of the likeliest tokens are reported for each token; -1: nothing is, not even the token's own probability.
	Logprobs int
	Echo     bool // with Logprobs, tokens of the prompt are reported too
	Trim     bool // the text begins where the tokenizer's decoder would leave out a space: an answer, not a continuation
	// Context ends the request early; nil: nothing does.
	Context context.Context
	// Each, if set, is called with parts of the text as they come, whole characters, and the tokens that they end with. It must
	// not wait.
	Each func(Part)
	// Done is called with the result, or with the error that the request ended in. It must not wait.
	Done func(*Result, error)
}

// Part is a part of a text.
type Part struct {
	Text   string
	Tokens []Token
}

// Token is a token of a text.
type Token struct {
	ID      int32
	Text    []byte
	First   bool    // the first of a prompt, which follows from nothing
	Logprob float64 // unless First
	Top     []Ranked
}

// Reasons why a text ended, as OpenAI's API names them.
const (
	Stopped = "stop"
	Full    = "length"
)

// Result is a request's text.
type Result struct {
	Text   string  // without the prompt
	Tokens []Token // those of the prompt first, with Echo
	Added  int     // tokens that were generated, with the one that ended the text
	Reason string
}

// text is a text as it grows. What could still become part of a stop string, or of a character, is held back.
type text struct {
	stops [][]byte
	all   []byte
	sent  int // bytes that were handed out
	ended bool
}

func newText(stops []string) *text {
	t := &text{}
	for _, s := range stops {
		t.stops = append(t.stops, []byte(s))
	}
	return t
}

// add adds a token's bytes, and returns what may be handed out. If a stop string is complete, the text ends before it.
func (t *text) add(token []byte) string {
	from := len(t.all)
	t.all = append(t.all, token...)
	end := len(t.all)
	for _, s := range t.stops {
		first := max(0, from-len(s)+1)
		if i := bytes.Index(t.all[first:], s); i >= 0 {
			end, t.ended = min(end, first+i), true
		}
	}
	if t.ended {
		t.all = t.all[:end]
		return t.takeRest()
	}
	for _, s := range t.stops {
		end = min(end, len(t.all)-overlap(t.all, s))
	}
	return t.upTo(wholeCharacters(t.all[:end]))
}

// addControl adds a control token. It is in no text, as with transformers and other servers, but ends it if it is a stop string.
func (t *text) addControl(token []byte) string {
	if !slices.ContainsFunc(t.stops, func(s []byte) bool { return bytes.Equal(s, token) }) {
		return ""
	}
	t.ended = true
	return t.takeRest()
}

// takeRest returns all that has not been handed out.
func (t *text) takeRest() string { return t.upTo(len(t.all)) }

func (t *text) upTo(end int) string {
	end = max(end, t.sent)
	part := readable(t.all[t.sent:end])
	t.sent = end
	return part
}

// overlap returns the length of the longest end of a text that begins a stop string without being all of it.
func overlap(text, stop []byte) int {
	for n := min(len(text), len(stop)-1); n > 0; n-- {
		if bytes.HasSuffix(text, stop[:n]) {
			return n
		}
	}
	return 0
}

// wholeCharacters returns the length of a text without the bytes at its end that begin a character.
func wholeCharacters(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if at := len(text) - n; utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				return at
			}
			break
		}
	}
	return len(text)
}

// readable returns bytes as text. What is no character becomes U+FFFD, one for each longest run of bytes that begins a character, as tokenizers of
// other software decode.
func readable(text []byte) string {
	if utf8.Valid(text) {
		return string(text)
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		if r == utf8.RuneError && n == 1 {
			for n < len(text) && !utf8.FullRune(text[:n+1]) {
				n++
			}
		}
		b.WriteRune(r)
		text = text[n:]
	}
	return b.String()
}
