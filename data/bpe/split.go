package bpe

import (
	"bytes"
	"fmt"
	"sync"
	"unicode/utf8"
)

// Pre-tokenisation: text is split into pre-tokens before tokens are merged.
//
// Approach: a tokenizer has a list of steps, each of which splits what the step before it has left whole, by the
// matches of a regular expression (automaton.go).
//
// Example, GPT-2: "I've  seen 42!" -> "I" "'ve" " " " seen" " 42" "!". The run
// of two spaces gives its last one to the following word: that is what
// \s+(?!\S) says, white space not followed by another character.

// Pattern is a published pre-tokenisation expression.
type Pattern uint8

const (
	// PatternGPT2 is the expression of GPT-2 (also OPT, GPT-NeoX, ...).
	PatternGPT2 Pattern = iota
	// PatternLlama3 is that of Llama 3, numbers in groups of up to three digits.
	PatternLlama3
	// PatternQwen2 is that of Qwen2 and Qwen2.5, every digit on its own.
	PatternQwen2
	// PatternDigits is GPT-2's, applied between digits, each of which is a pre-token
	// (SmolLM, StarCoder).
	PatternDigits
	// PatternO200k is that of gpt-oss (o200k_harmony), in which words end where lower case is followed by upper case,
	// and include their contraction.
	PatternO200k
	// patternOther stands for any other way to split.
	patternOther
)

// patterns are the expressions that tokenizers made here may have, exactly as tokenizer.json spells them.
var patterns = [...]struct {
	name, regex string
	compiled    func() *automaton
}{
	PatternGPT2: known("gpt2", gpt2Regex),
	PatternLlama3: known("llama3", `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|`+
		` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`),
	PatternQwen2: known("qwen2", `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|`+
		` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`),
	PatternO200k: known("o200k", `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|`+
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|`+
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`),
	// Published as two steps; this expression is equivalent.
	PatternDigits: known("digits", `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+`),
}

const gpt2Regex = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

func known(name, regex string) (entry struct {
	name, regex string
	compiled    func() *automaton
}) {
	entry.name, entry.regex = name, regex
	entry.compiled = sync.OnceValue(func() *automaton {
		a, err := compile(regex)
		if err != nil {
			panic(fmt.Sprintf("bpe: the pattern %s: %v", name, err)) // tests compile all of them
		}
		return a
	})
	return entry
}

func (p Pattern) String() string { return patterns[p].name }

// step returns the pattern as a step.
func (p Pattern) step() step { return step{name: patterns[p].regex, auto: patterns[p].compiled()} }

// behavior says what becomes of the matches of an expression, and of the text between them.
type behavior uint8

const (
	isolated   behavior = iota // each is a piece
	removed                    // matches are left out
	toPrevious                 // a match belongs to the text before it
	toNext                     // a match belongs to the text behind it
	contiguous                 // adjacent matches are one piece
)

// behaviors are their names in tokenizer.json.
var behaviors = map[string]behavior{"Isolated": isolated, "Removed": removed, "MergedWithPrevious": toPrevious, "MergedWithNext": toNext, "Contiguous": contiguous}

// leading says where a space is inserted.
type leading uint8

const (
	leadNever leading = iota
	_                 // formerly: before each stretch, which is a normalizer's work
	leadEach          // before each piece that does not begin with a space
	leadFirst         // the same, but only at the beginning of the text
)

// step is a step of pre-tokenisation.
type step struct {
	name     string // what it does, for the fingerprint
	auto     *automaton
	behavior behavior
	invert   bool // matches are the text between matches
	// A step without an automaton changes pieces instead.
	lead       leading
	underlined bool // ▁ becomes a space, see spaced.go
}

// covers reports whether a step keeps matches as they are, so that where each ends a pre-token ends.
func (s *step) covers() bool {
	return s.auto != nil && (s.behavior == isolated || s.behavior == removed)
}

// piece is text[first:end], a match of an expression or what is between two.
type piece struct {
	first, end int
	match      bool
}

// pieces goes through the pieces of a text.
type pieces struct {
	step  *step
	text  []byte
	far   *scan
	at    int   // where the next piece begins
	found piece // the next match, if found.end > at
	next  piece // read ahead, if next.end > 0
}

// raw returns the next match or gap; ok is false at the end.
func (p *pieces) raw() (r piece, ok bool) {
	if p.next.end > 0 {
		r, p.next = p.next, piece{}
		return r, true
	}
	if p.at == len(p.text) {
		return r, false
	}
	if p.found.end <= p.at {
		p.found = piece{len(p.text), len(p.text), false}
		for i := p.at; i < len(p.text); {
			if end := p.step.auto.match(p.text, i, p.far); end >= 0 {
				p.found = piece{i, end, true}
				break
			}
			_, width := utf8.DecodeRune(p.text[i:])
			i += width
		}
	}
	if r = p.found; r.first > p.at || r.end == r.first {
		r = piece{p.at, p.found.first, false}
	}
	p.at = r.end
	r.match = r.match != p.step.invert
	return r, true
}

// peek returns the next match or gap without taking it.
func (p *pieces) peek() (piece, bool) {
	r, ok := p.raw()
	if ok {
		p.next = r
	}
	return r, ok
}

// piece returns the next piece; ok is false at the end.
func (p *pieces) piece() (r piece, ok bool) {
	r, ok = p.raw()
	switch p.step.behavior {
	case removed:
		for ok && r.match {
			r, ok = p.raw()
		}
	case toPrevious, toNext:
		if ok && r.match == (p.step.behavior == toNext) {
			if more, any := p.peek(); any && more.match != r.match {
				p.next, r.end = piece{}, more.end
			}
		}
	case contiguous:
		for ok {
			more, any := p.peek()
			if !any || more.match != r.match {
				break
			}
			p.next, r.end = piece{}, more.end
		}
	}
	return r, ok
}

// split appends the ids of text, to which the steps from k on apply.
func (e *Encoder) split(dst []int32, text []byte, k int, at Place) []int32 {
	if k == len(e.t.steps) {
		return e.words(dst, text)
	}
	s := &e.t.steps[k]
	if s.auto == nil {
		return e.split(dst, e.led(s, text, k, at), k+1, at)
	}
	e.far[k].reset()
	if k == len(e.t.steps)-1 && s.behavior == isolated && e.t.chars == nil {
		return e.isolated(dst, text, s.auto, &e.far[k])
	}
	all := pieces{step: s, text: text, far: &e.far[k]}
	for p, ok := all.piece(); ok; p, ok = all.piece() {
		here := at
		if p.first > 0 {
			here = Behind
		}
		dst = e.split(dst, text[p.first:p.end], k+1, here)
	}
	return dst
}

// isolated is split for the most frequent last step, with whole words of bytes.
func (e *Encoder) isolated(dst []int32, text []byte, a *automaton, far *scan) []int32 {
	for at := 0; at < len(text); {
		end := a.match(text, at, far)
		for end < 0 { // text between matches
			_, width := utf8.DecodeRune(text[at:])
			gap := at + width
			for end = -1; gap < len(text); gap += width {
				if end = a.match(text, gap, far); end >= 0 {
					break
				}
				_, width = utf8.DecodeRune(text[gap:])
			}
			dst = e.word(dst, text[at:], gap-at)
			if at = gap; at == len(text) {
				return dst
			}
		}
		dst = e.word(dst, text[at:], end-at)
		at = end
	}
	return dst
}

// led returns a piece with the space that step k puts before it.
func (e *Encoder) led(s *step, text []byte, k int, at Place) []byte {
	buffer := e.leads[k][:0]
	wants := s.lead == leadEach && at != Within || s.lead == leadFirst && at == AtStart
	if s.underlined {
		text = bytes.ReplaceAll(text, []byte(underline), []byte{' '})
	}
	if !wants || len(text) == 0 || text[0] == ' ' {
		return text
	}
	e.leads[k] = append(append(buffer, ' '), text...)
	return e.leads[k]
}
