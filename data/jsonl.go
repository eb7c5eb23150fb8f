package data

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/athanor-llm/athanor/data/chat"
)

// A JSONL scanner.
//
// Approach: a line is one object, of which only the string under "text" is
// wanted or, if there is none, those under "prompt" and "completion". The scanner
// walks over the object's keys, decodes the text directly into the tokenizer's
// input, and has encoding/json validate every other value. One pass, no
// intermediate values but the two strings. Conversations are left to package chat, pairs to
// pairs.go.
//
// Why not json.Unmarshal: it replaces bytes that are not UTF-8, matches keys
// regardless of case, and copies every text twice.
//
// Known weakness: a line is in memory as a whole, unless it is long because its text is (longrow.go).

// record is the document in a line: the text in dst from the old length on, of which
// the first given bytes are a prompt; or a conversation; or a pair of such documents.
type record struct {
	dst    []byte
	given  int
	turns  *chat.Conversation
	pair   *[2]record // the chosen one and the rejected one
	tags   []int32    // of what is wanted with verdicts: 1 of a good answer, 0 of a bad one; with labels, see labels.go
	label  []byte     // of a text that is wanted with one: its "label", as JSON
	beside bool       // the line has another document too
}

// wanted says which of a line's documents is wanted.
type wanted uint8

const (
	anything wanted = iota
	aPair           // where there is one beside another document
	aVerdict        // a document with a verdict, or a pair; anything else is an error
	aLabel          // a text, or another document, and its "label" in record.label
)

// usualField is the field with the text of a document.
var usualField = []string{"text"}

// appendText appends the document of the JSON object in line to dst: its text, which is under the first of names that it has, or its
// "prompt" and its "completion". Conversations and pairs are returned as such. Some data sets have a pair and
// another document in one line: want says which is wanted.
func appendText(dst, line []byte, names []string, want wanted) (record, error) {
	base := len(dst)
	var keys []string
	found, empty := -1, "" // number of the name; a name that is null
	other := fields{}
	s := lineScanner{line: line}
	if !s.take('{') {
		if s.take('[') {
			return record{dst: dst}, errors.New(`the line begins with "[", as a JSON array does; hint: write one object per line, {"text": ...}`)
		}
		return record{dst: dst}, s.fault("a JSON object is expected")
	}
	for first := true; !s.take('}'); first = false {
		key, err := s.key(first)
		if err != nil {
			return record{dst: dst[:base]}, err
		}
		name := slices.Index(names, key)
		wanted := name >= 0 && (found < 0 || name <= found)
		switch {
		case name >= 0 && name == found || other[key] != nil:
			err = fmt.Errorf("the key %q is given twice; hint: leave one of the two", key)
		case wanted && s.atString():
			found = name
			dst, err = s.appendString(dst[:base])
		case wanted && bytes.HasPrefix(s.line[s.at:], []byte("null")): // as if it were absent
			empty = key
			err = s.skipValue()
		case wanted:
			err = noString(key)
		default:
			keys = append(keys, key)
			start := s.at
			if err = s.skipValue(); slices.Contains(otherKeys, key) || slices.Contains(besideKeys, key) {
				other[key] = line[start:s.at]
			}
		}
		if err != nil {
			return record{dst: dst[:base]}, err
		}
	}
	s.skipSpace()
	if s.at != len(line) {
		return record{dst: dst[:base]}, s.fault("there is more after the object")
	}
	if found >= 0 && want != aVerdict {
		return record{dst: dst, label: other["label"], beside: slices.ContainsFunc(answerKeys, other.has)}, nil
	}
	maps.DeleteFunc(other, func(_ string, value []byte) bool { return string(value) == "null" }) // of other rows' schemas
	r, err := other.document(dst[:base], want)
	if err == nil && r.turns == nil && r.pair == nil && r.given < 0 {
		if err = noText(keys, names); empty != "" {
			err = noString(empty)
		}
	}
	return r, err
}

func noString(key string) error {
	return fmt.Errorf("%q is not a string; hint: leave out documents without text, or set on_bad_row: skip", key)
}

// otherKeys are the keys of documents that are more than a text.
var otherKeys = []string{"prompt", "completion", "chosen", "rejected", "messages", "conversations", "instruction", "input", "output", "system", "history", "tools", "chat_template_kwargs"}

// besideKeys are keys that no document has, and that are refused where one has them.
var besideKeys = func() []string {
	keys := []string{"label"}
	for _, u := range unbuilt {
		keys = append(keys, u.key)
	}
	return keys
}()

// answerKeys are those of otherKeys each of which makes up another document.
var answerKeys = []string{"completion", "messages", "conversations", "output", "chosen"}

// fields are values of an object, as JSON.
type fields map[string][]byte

// text decodes the string under a key; ok is false if there is none.
func (f fields) text(key string) (text []byte, ok bool, err error) {
	s := lineScanner{line: f[key]}
	if !s.atString() {
		return nil, false, nil
	}
	text, err = s.appendString(nil)
	return text, err == nil, err
}

// has reports whether a key has a value other than null.
func (f fields) has(key string) bool { return f[key] != nil && string(f[key]) != "null" }

// key reads the key before a value, and moves to the value.
func (s *lineScanner) key(first bool) (string, error) {
	if !first && !s.take(',') {
		return "", s.fault("a comma or } is expected")
	}
	s.skipSpace()
	key, err := s.appendString(nil)
	if err != nil {
		return "", err
	}
	if !s.take(':') {
		return "", s.fault("a colon is expected")
	}
	s.skipSpace()
	return string(key), nil
}

// atString reports whether the next value is a string.
func (s *lineScanner) atString() bool { return s.at < len(s.line) && s.line[s.at] == '"' }

func noText(keys, names []string) error {
	if len(keys) > 8 {
		keys = append(keys[:8], "...")
	}
	return fmt.Errorf(`the object has no "%s", only [%s]; hint: set text_field (in commands --text-field) to the field that holds the document, or write {"prompt": ..., "completion": ...}`,
		strings.Join(names, `" or "`), strings.Join(keys, " "))
}

// lineScanner is a position in a line of JSON.
type lineScanner struct {
	line   []byte
	at     int
	before int // bytes of the whole line before this part of it
}

func (s *lineScanner) fault(what string) error {
	return fmt.Errorf("byte %d of the row: %s; hint: every line, or every element of one array, must be a JSON object", s.before+s.at+1, what)
}

func (s *lineScanner) skipSpace() {
	for s.at < len(s.line) {
		switch s.line[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

// take skips white space, then b if it is next, and reports whether it was.
func (s *lineScanner) take(b byte) bool {
	s.skipSpace()
	if s.at < len(s.line) && s.line[s.at] == b {
		s.at++
		return true
	}
	return false
}

// appendString decodes the string literal at s.at.
func (s *lineScanner) appendString(dst []byte) ([]byte, error) {
	if s.at >= len(s.line) || s.line[s.at] != '"' {
		return dst, s.fault("a string is expected")
	}
	s.at++
	for {
		dst = s.appendPlain(dst)
		if s.at >= len(s.line) {
			return dst, s.fault("the string does not end")
		}
		switch s.line[s.at] {
		case '"':
			s.at++
			return dst, nil
		case '\\':
			var err error
			if dst, err = s.appendEscape(dst); err != nil {
				return dst, err
			}
		default:
			return dst, s.fault("the string has an unescaped control character")
		}
	}
}

// appendPlain appends the characters of a string up to one that is special.
func (s *lineScanner) appendPlain(dst []byte) []byte {
	start := s.at
	for s.at < len(s.line) && s.line[s.at] >= ' ' && s.line[s.at] != '"' && s.line[s.at] != '\\' {
		s.at++
	}
	return append(dst, s.line[start:s.at]...)
}

// escapes maps the letter after a backslash to its byte; 0: no such escape.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// appendEscape decodes the escape at s.at. Half a surrogate pair becomes
// U+FFFD, as in encoding/json.
func (s *lineScanner) appendEscape(dst []byte) ([]byte, error) {
	if s.at+1 >= len(s.line) {
		return dst, s.fault("the string does not end")
	}
	letter := s.line[s.at+1]
	if b := escapes[letter]; b != 0 {
		s.at += 2
		return append(dst, b), nil
	}
	r, ok := s.unicodeEscape(s.at)
	if !ok {
		return dst, s.fault("the string has an unknown escape")
	}
	s.at += 6
	if utf16.IsSurrogate(r) {
		low, _ := s.unicodeEscape(s.at)
		if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
			s.at += 6
		}
	}
	return utf8.AppendRune(dst, r), nil
}

// unicodeEscape reads \uXXXX at index i.
func (s *lineScanner) unicodeEscape(i int) (r rune, ok bool) {
	if i+6 > len(s.line) || s.line[i] != '\\' || s.line[i+1] != 'u' {
		return 0, false
	}
	for _, b := range s.line[i+2 : i+6] {
		switch {
		case b >= '0' && b <= '9':
			b -= '0'
		case b|0x20 >= 'a' && b|0x20 <= 'f':
			b = b | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(b)
	}
	return r, true
}

// skipValue passes over the value at s.at, which must be valid JSON.
func (s *lineScanner) skipValue() error {
	start, depth := s.at, 0
scan:
	for s.at < len(s.line) {
		switch b := s.line[s.at]; b {
		case '"':
			if !s.skipString() {
				return s.fault("the string does not end")
			}
			if depth == 0 {
				break scan
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				s.at++
				break scan
			}
		}
		if depth < 0 || depth == 0 && s.line[s.at] == ',' {
			break scan
		}
		s.at++
	}
	if !json.Valid(s.line[start:s.at]) {
		s.at = start
		return s.fault("the value is not JSON")
	}
	return nil
}

func (s *lineScanner) skipString() bool {
	for s.at++; s.at < len(s.line); s.at++ {
		switch s.line[s.at] {
		case '\\':
			s.at++
		case '"':
			s.at++
			return true
		}
	}
	return false
}
