package bpe

import (
	"bytes"
	"fmt"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Normalizers: what is done to a text before it is split.

// normalizer is one of the steps, a function that appends the changed text to dst.
type normalizer struct {
	name   string // with its settings, for the fingerprint
	apply  func(dst, text []byte, at Place) []byte
	same   func(text []byte) bool // reports that nothing would change; nil: not known
	growth int                    // how many times as long it can make a text; 0: once
	leads  bool                   // it treats the beginning of a stretch differently
	cuts   bool                   // the parts of a text cut before an ASCII character come out as in the whole
}

// normalize returns the text after all steps; it may be text itself.
func (e *Encoder) normalize(text []byte, at Place) []byte {
	for i := range e.t.normal {
		step := &e.t.normal[i]
		if step.same != nil && step.same(text) {
			continue
		}
		out := step.apply(e.spare[:0], text, at)
		e.spare, e.text = e.text, out
		text = out
	}
	return text
}

// form is one of Unicode's normal forms.
func form(name string, f norm.Form) normalizer {
	return normalizer{name: name, cuts: true, same: f.IsNormal,
		apply: func(dst, text []byte, _ Place) []byte { return f.Append(dst, text...) }}
}

// each maps every character.
func each(name string, f func(dst []byte, r rune) []byte) normalizer {
	return normalizer{name: name, cuts: true, apply: func(dst, text []byte, _ Place) []byte {
		for len(text) > 0 {
			r, width := utf8.DecodeRune(text)
			if r == utf8.RuneError && width == 1 {
				dst = append(dst, text[0])
			} else {
				dst = f(dst, r)
			}
			text = text[width:]
		}
		return dst
	}}
}

// lowercase writes every character in lower case; a dotted capital I becomes two.
func lowercase() normalizer {
	return each("Lowercase", func(dst []byte, r rune) []byte {
		if r == '\u0130' {
			return append(dst, "i\u0307"...)
		}
		return utf8.AppendRune(dst, unicode.ToLower(r))
	})
}

// stripAccents leaves out marks, which a decomposition before it has made characters of their own.
func stripAccents() normalizer {
	return each("StripAccents", func(dst []byte, r rune) []byte {
		if unicode.Is(unicode.M, r) {
			return dst
		}
		return utf8.AppendRune(dst, r)
	})
}

// strip leaves out white space at the ends.
func strip(left, right bool) normalizer {
	return normalizer{name: fmt.Sprintf("Strip %v %v", left, right), apply: func(dst, text []byte, at Place) []byte {
		if left && at != Within {
			text = bytes.TrimLeftFunc(text, unicode.IsSpace)
		}
		if right {
			text = bytes.TrimRightFunc(text, unicode.IsSpace)
		}
		return append(dst, text...)
	}}
}

// prepend puts a text before every stretch.
func prepend(what string) normalizer {
	return normalizer{name: fmt.Sprintf("Prepend %q", what), cuts: true, leads: true, apply: func(dst, text []byte, at Place) []byte {
		if at != Within && len(text) > 0 {
			dst = append(dst, what...)
		}
		return append(dst, text...)
	}}
}

// replace replaces a fixed text.
func replace(what, by string) normalizer {
	old := []byte(what)
	return normalizer{name: fmt.Sprintf("Replace %q %q", what, by), growth: len(by) / len(what), cuts: utf8.RuneCountInString(what) == 1,
		same: func(text []byte) bool { return !bytes.Contains(text, old) },
		apply: func(dst, text []byte, _ Place) []byte {
			for {
				i := bytes.Index(text, old)
				if i < 0 {
					return append(dst, text...)
				}
				dst = append(append(dst, text[:i]...), by...)
				text = text[i+len(old):]
			}
		}}
}

// replaceMatches replaces the matches of an expression.
func replaceMatches(expression string, a *automaton, by string) normalizer {
	return normalizer{name: fmt.Sprintf("Replace regex %q %q", expression, by), growth: len(by), apply: func(dst, text []byte, _ Place) []byte {
		var far scan
		for at := 0; at < len(text); {
			if end := a.match(text, at, &far); end >= 0 {
				dst = append(dst, by...)
				at = end
				continue
			}
			_, width := utf8.DecodeRune(text[at:])
			dst = append(dst, text[at:at+width]...)
			at += width
		}
		return dst
	}}
}

// without replaces bytes that no text in UTF-8 has by U+FFFD.
func without(lacking []byte) normalizer {
	all := string(utf8.RuneError)
	is := [256]bool{}
	for _, b := range lacking {
		is[b] = true
	}
	return normalizer{
		same: func(text []byte) bool {
			for _, b := range text {
				if is[b] {
					return false
				}
			}
			return true
		},
		apply: func(dst, text []byte, _ Place) []byte {
			for _, b := range text {
				if is[b] {
					dst = append(dst, all...)
				} else {
					dst = append(dst, b)
				}
			}
			return dst
		}}
}
