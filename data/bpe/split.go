package bpe

import (
	"unicode"
	"unicode/utf8"
)

// Pre-tokenisation without a regular expression engine.
//
// Approach: a vocabulary is published with a regular expression that cuts text
// into pre-tokens. The five expressions below cover nearly all byte-level BPE
// tokenizers; each is a hand-written scanner that looks at the class of a
// character (letter, number, white space, other) and reads one run.
//
// Example, GPT-2: "I've  seen 42!" -> "I" "'ve" " " " seen" " 42" "!". The run
// of two spaces gives its last one to the following word: that is what
// \s+(?!\S) says, white space not followed by another character.
//
// Known weakness: an expression that is not in the table is refused, not
// interpreted.

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
	// PatternO200k is that of gpt-oss (o200k_harmony), see o200k.go.
	PatternO200k
)

// patterns is the table of supported expressions, indexed by Pattern, exactly
// as tokenizer.json spells them.
var patterns = [...]struct {
	name, regex string
	digits      int // longest run of numbers in one pre-token, for the newer two
}{
	PatternGPT2: {"gpt2", `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, 0},
	PatternLlama3: {"llama3", `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|` +
		` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`, 3},
	PatternQwen2: {"qwen2", `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|` +
		` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`, 1},
	PatternO200k: {"o200k", `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`, 3},
	// Published as two steps; this expression is equivalent.
	PatternDigits: {"digits", `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+`, 1},
}

func (p Pattern) String() string { return patterns[p].name }

// next returns the length in bytes of the first pre-token of text, at least 1.
// text must not be empty.
func (p Pattern) next(text []byte) int {
	switch p {
	case PatternGPT2:
		return nextGPT2(text)
	case PatternDigits:
		return nextDigits(text)
	case PatternO200k:
		return nextO200k(text)
	}
	return nextLlama3(text, patterns[p].digits)
}

// class is the kind of a character, as far as the expressions distinguish it.
type class uint8

const (
	other   class = iota // [^\s\p{L}\p{N}], also a byte that is not UTF-8
	letter               // \p{L}
	number               // \p{N}
	space                // \s but not newline
	newline              // [\r\n]
)

// asciiClass holds the classes of the characters below 0x80.
var asciiClass = makeASCIIClass()

func makeASCIIClass() (table [utf8.RuneSelf]class) {
	for r := range table {
		table[r] = runeClass(rune(r))
	}
	return table
}

func runeClass(r rune) class {
	switch {
	case r == '\r' || r == '\n':
		return newline
	case unicode.IsLetter(r):
		return letter
	case unicode.IsSpace(r):
		return space
	case unicode.IsNumber(r):
		return number
	}
	return other
}

// classAt returns class and width in bytes of the character at text[i].
func classAt(text []byte, i int) (class, int) {
	if b := text[i]; b < utf8.RuneSelf {
		return asciiClass[b], 1
	}
	r, width := utf8.DecodeRune(text[i:])
	return runeClass(r), width
}

// run returns the end of the run of class c that starts at text[i].
func run(text []byte, i int, c class) int {
	for i < len(text) {
		if b := text[i]; b < utf8.RuneSelf {
			if asciiClass[b] != c {
				return i
			}
			i++
			continue
		}
		got, width := classAt(text, i)
		if got != c {
			return i
		}
		i += width
	}
	return i
}

func nextGPT2(text []byte) int {
	if text[0] == '\'' {
		if n := contraction(text, false); n > 0 {
			return n
		}
	}
	i := 0
	if text[0] == ' ' && len(text) > 1 {
		i = 1 // the optional space of ` ?\p{L}+`, given back below
	}
	c, width := classAt(text, i)
	if c < space {
		return run(text, i+width, c)
	}
	return white(text)
}

// nextDigits is nextGPT2 for text that ends before the next digit. A digit is a
// pre-token, and white space before one keeps its last space.
func nextDigits(text []byte) int {
	c, width := classAt(text, 0)
	if c == number {
		return width
	}
	end := 0
	for c >= space {
		if end += width; end == len(text) {
			break
		}
		c, width = classAt(text, end)
	}
	if end > 0 && c == number {
		return end
	}
	return nextGPT2(text)
}

func nextLlama3(text []byte, digits int) int {
	if text[0] == '\'' {
		if n := contraction(text, true); n > 0 {
			return n
		}
	}
	c, width := classAt(text, 0)
	switch c {
	case letter:
		return run(text, width, letter)
	case number:
		return numbers(text, digits)
	case newline:
		return whiteToNewline(text)
	}
	// One character that is neither newline, letter nor number may lead a word;
	// a space may lead punctuation, which includes the newlines after it.
	follows := newline // has no effect below
	if width < len(text) {
		follows, _ = classAt(text, width)
	}
	switch {
	case follows == letter:
		return run(text, width, letter)
	case c == other || text[0] == ' ' && follows == other:
		return run(text, run(text, width, other), newline)
	}
	return whiteToNewline(text)
}

// numbers returns the length in bytes of up to most numbers at the start of text.
func numbers(text []byte, most int) int {
	end := 0
	for n := 0; n < most && end < len(text); n++ {
		c, width := classAt(text, end)
		if c != number {
			break
		}
		end += width
	}
	return end
}

// white matches \s+(?!\S)|\s+ at the start of text, which must be white space: the
// whole run if it ends the text, else all but its last character, at least one.
func white(text []byte) int {
	last, end := 0, 0
	for end < len(text) {
		c, width := classAt(text, end)
		if c < space {
			if last == 0 {
				return end
			}
			return last
		}
		last = end
		end += width
	}
	return end
}

// whiteToNewline matches \s*[\r\n]+|\s+(?!\S)|\s+: up to the last newline of
// the run, or like white if it has none.
func whiteToNewline(text []byte) int {
	end, after := 0, 0
	for end < len(text) {
		c, width := classAt(text, end)
		if c < space {
			break
		}
		end += width
		if c == newline {
			after = end
		}
	}
	if after > 0 {
		return after
	}
	return white(text)
}

// contraction returns the length of 's 't 're 've 'm 'll 'd at the start of
// text, or 0. With fold, letters of either
// case match, and with them the long s, U+017F.
func contraction(text []byte, fold bool) int {
	if len(text) < 2 || text[0] != '\'' {
		return 0
	}
	var lower byte
	if fold {
		lower = 0x20
	}
	switch a := text[1] | lower; a {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v', 'l':
		want := byte('e')
		if a == 'l' {
			want = 'l'
		}
		if len(text) > 2 && text[2]|lower == want {
			return 3
		}
	}
	if fold && len(text) > 2 && text[1] == 0xC5 && text[2] == 0xBF {
		return 3
	}
	return 0
}
