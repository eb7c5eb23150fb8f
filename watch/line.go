package watch

import (
	"bytes"
	"errors"
	"math"
	"strconv"
)

// A line of metrics.jsonl is an object of numbers, such as {"step":1,"loss":2.5,"skipped":true,"val_rewards":{"margin":0.1}}.
// A run of 100,000 steps has 25 MB of them, so they are read without making values: numbers are given to a function as
// they are met.

// errLine says that a line is not an object of JSON.
var errLine = errors.New("not a line of metrics")

// numbers calls add for each number of a line, by its key; true counts as 1 and null, which is written for what is not
// finite, as an infinity. Keys of objects within are prefixed, val_rewards.margin; strings and lists are passed over.
func numbers(line []byte, add func(key []byte, value float64)) error {
	s := scanner{rest: bytes.TrimSpace(line), add: add}
	if !s.object(nil, 0) || len(s.rest) > 0 {
		return errLine
	}
	return nil
}

type scanner struct {
	rest []byte
	add  func(key []byte, value float64)
}

// deepest is how far objects and lists may be within others.
const deepest = 8

// take removes a byte, and spaces around it, if it comes next.
func (s *scanner) take(b byte) bool {
	s.space()
	if len(s.rest) == 0 || s.rest[0] != b {
		return false
	}
	s.rest = s.rest[1:]
	s.space()
	return true
}

func (s *scanner) space() {
	for len(s.rest) > 0 && (s.rest[0] == ' ' || s.rest[0] == '\t') {
		s.rest = s.rest[1:]
	}
}

// object reads an object whose keys begin with prefix.
func (s *scanner) object(prefix []byte, depth int) bool {
	if depth > deepest || !s.take('{') {
		return false
	}
	if s.take('}') {
		return true
	}
	for {
		key, ok := s.text()
		if !ok || !s.take(':') {
			return false
		}
		if len(prefix) > 0 {
			key = append(append(append([]byte{}, prefix...), '.'), key...)
		}
		if !s.value(key, depth) {
			return false
		}
		if s.take('}') {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
}

// list passes over a list.
func (s *scanner) list(depth int) bool {
	silent := scanner{s.rest, func([]byte, float64) {}}
	if depth > deepest || !silent.take('[') {
		return false
	}
	for first := true; !silent.take(']'); first = false {
		if !first && !silent.take(',') || !silent.value(nil, depth) {
			return false
		}
	}
	s.rest = silent.rest
	return true
}

// text reads a string, whose escapes it leaves as they are.
func (s *scanner) text() ([]byte, bool) {
	if len(s.rest) == 0 || s.rest[0] != '"' {
		return nil, false
	}
	for i := 1; i < len(s.rest); i++ {
		switch s.rest[i] {
		case '\\':
			i++
		case '"':
			text := s.rest[1:i]
			s.rest = s.rest[i+1:]
			return text, true
		}
	}
	return nil, false
}

// value reads what a key has.
func (s *scanner) value(key []byte, depth int) bool {
	if len(s.rest) == 0 {
		return false
	}
	switch s.rest[0] {
	case '{':
		return s.object(key, depth+1)
	case '[':
		return s.list(depth + 1)
	case '"':
		_, ok := s.text()
		return ok
	}
	end := bytes.IndexAny(s.rest, ",}] \t")
	if end < 0 {
		return false
	}
	word := s.rest[:end]
	s.rest = s.rest[end:]
	switch string(word) {
	case "true":
		s.add(key, 1)
	case "false":
		s.add(key, 0)
	case "null":
		s.add(key, math.Inf(1))
	default:
		x, err := strconv.ParseFloat(string(word), 64)
		if err != nil || word[0] != '-' && (word[0] < '0' || word[0] > '9') { // ParseFloat also knows Inf and NaN
			return false
		}
		s.add(key, x)
	}
	return true
}
