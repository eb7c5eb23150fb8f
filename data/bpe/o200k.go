package bpe

import (
	"unicode"
	"unicode/utf8"
)

// nextO200k is for the expression of gpt-oss, in which words end where lower case is followed by upper case,
// and include their contraction. The expression has two forms of a word, the first of which is preferred, and
// each may be preceded by a character that is neither newline, letter nor number:
//
//	upper* lower+    "Hello", "JSONtext" of "JSONtextABC"
//	upper+ lower*    "ABC"
//
// Letters without case, and marks, are both upper and lower. So the first form ends with the last of these if
// nothing lower follows: it takes "日本" from "日本ABC".
func nextO200k(text []byte) int {
	c, width := classAt(text, 0)
	switch c {
	case number:
		return numbers(text, 3)
	case newline:
		return whiteToNewline(text)
	}
	leads := []int{width, 0} // where the word may begin, as preferred
	if c == letter {
		leads = leads[1:]
	}
	for _, first := range leads {
		if end := lowerWord(text, first); end > 0 {
			return end + contraction(text[end:], true)
		}
	}
	for _, first := range leads {
		if end := uppers(text, first); end > first {
			return end + contraction(text[end:], true)
		}
	}
	if c != other {
		follows := newline // has no effect below
		if width < len(text) {
			follows, _ = classAt(text, width)
		}
		if text[0] != ' ' || follows != other {
			return whiteToNewline(text)
		}
	}
	end := run(text, width, other)
	for end < len(text) && (text[end] == '\r' || text[end] == '\n' || text[end] == '/') {
		end++
	}
	return end
}

// lowerWord returns the end of upper* lower+ at text[i], or 0.
func lowerWord(text []byte, i int) int {
	last := 0 // the end of the last character that is both
	for i < len(text) {
		upper, lower, width := caseAt(text, i)
		if !upper && lower { // only lower ones from here on
			for i += width; i < len(text); i += width {
				if _, lower, width = caseAt(text, i); !lower {
					break
				}
			}
			return i
		}
		if !upper {
			break
		}
		if i += width; lower {
			last = i
		}
	}
	return last
}

// uppers returns the end of upper* at text[i].
func uppers(text []byte, i int) int {
	for i < len(text) {
		upper, _, width := caseAt(text, i)
		if !upper {
			break
		}
		i += width
	}
	return i
}

// caseAt returns which cases the character at text[i] may have in a word, and its width in bytes.
func caseAt(text []byte, i int) (upper, lower bool, width int) {
	if b := text[i]; b < utf8.RuneSelf {
		return 'A' <= b && b <= 'Z', 'a' <= b && b <= 'z', 1
	}
	r, width := utf8.DecodeRune(text[i:])
	switch {
	case unicode.In(r, unicode.Lm, unicode.Lo, unicode.M):
		return true, true, width
	case unicode.In(r, unicode.Lu, unicode.Lt):
		return true, false, width
	}
	return false, unicode.Is(unicode.Ll, r), width
}
