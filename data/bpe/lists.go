package bpe

import (
	"encoding/json"
	"math"
	"strings"
	"unicode/utf8"
)

// The two long lists of a tokenizer.json, read in one pass: encoding/json goes over each three times, and calls a method for
// each of 280,000 merges.
//
//	{"a": 0, "b": 1, ...}        the vocabulary
//	["a b", "ab c", ...]         merges, or [["a", "b"], ...]
//
// What is unusual, such as a number with a point, is left to encoding/json, whose errors are those of other files too.
// Strings are parts of one copy of the text, which stays in memory as long as one of them.

// longList is a position in JSON that is known to be valid.
type longList struct {
	text string
	at   int
}

// next returns the first character that is no white space, and goes to it; 0 at the end.
func (s *longList) next() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// take goes past one character, and reports whether it is the one that comes next.
func (s *longList) take(c byte) bool {
	if s.next() != c {
		return false
	}
	s.at++
	return true
}

// parts calls item for each part of a list that ends with a bracket, and reports whether all is usual.
func (s *longList) parts(begin, end byte, item func() bool) bool {
	if !s.take(begin) {
		return false
	}
	if s.take(end) {
		return true
	}
	for item() {
		if s.take(end) {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
	return false
}

// word reads a string.
func (s *longList) word() (word string, ok bool) {
	if !s.take('"') {
		return "", false
	}
	from := s.at
	n := strings.IndexByte(s.text[from:], '"')
	if n < 0 {
		return "", false
	}
	if strings.IndexByte(s.text[from:from+n], '\\') < 0 {
		s.at = from + n + 1
		return s.text[from : from+n], true
	}
	for ; s.at < len(s.text) && s.text[s.at] != '"'; s.at++ {
		if s.text[s.at] == '\\' {
			s.at++
		}
	}
	if s.at >= len(s.text) {
		return "", false
	}
	s.at++
	return word, json.Unmarshal([]byte(s.text[from-1:s.at]), &word) == nil
}

// id reads a number of digits alone.
func (s *longList) id() (int32, bool) {
	s.next()
	from, n := s.at, int64(0)
	for ; s.at < len(s.text) && s.text[s.at] >= '0' && s.text[s.at] <= '9'; s.at++ {
		if n = 10*n + int64(s.text[s.at]-'0'); n > math.MaxInt32 {
			return 0, false
		}
	}
	return int32(n), s.at > from
}

// readIDs reads a vocabulary, and reports whether all of it is usual.
func readIDs(raw []byte) (ids map[string]int32, ok bool) {
	s := &longList{text: string(raw)}
	if !utf8.ValidString(s.text) {
		return nil, false
	}
	ids = make(map[string]int32, strings.Count(s.text, ":"))
	ok = s.parts('{', '}', func() bool {
		word, ok := s.word()
		if !ok || !s.take(':') {
			return false
		}
		id, ok := s.id()
		ids[word] = id
		return ok
	})
	return ids, ok
}

// readMerges reads merges in either notation, and reports whether all of them are usual.
func readMerges(raw []byte) (list merges, ok bool) {
	s := &longList{text: string(raw)}
	if !utf8.ValidString(s.text) {
		return nil, false
	}
	list = make(merges, 0, strings.Count(s.text, ",")+1)
	ok = s.parts('[', ']', func() bool {
		var pair mergePair
		if s.next() == '[' {
			n := 0
			ok := s.parts('[', ']', func() bool {
				word, ok := s.word()
				if ok = ok && n < 2; ok {
					pair[n] = word
				}
				n++
				return ok
			})
			list = append(list, pair)
			return ok && n == 2
		}
		word, ok := s.word()
		if ok {
			pair, ok = mergeOf(word)
		}
		list = append(list, pair)
		return ok
	})
	return list, ok
}
