package config

import (
	"errors"
	"fmt"
	"strings"
)

// Lines says on which lines of its file a configuration has its keys: whoever finds fault with a value, however late,
// names the line.
type Lines struct {
	File string
	of   map[string]int // by key, with dots for nested ones; 0: an override
}

// Fault returns an error about a key, with its line.
func (l Lines) Fault(key, msg string) *Error {
	return &Error{File: l.File, Line: l.of[key], Key: key, Msg: msg}
}

// Given reports whether the file or an override has a key.
func (l Lines) Given(key string) bool {
	_, ok := l.of[key]
	return ok
}

// Error is one thing wrong with a configuration.
type Error struct {
	File string
	Line int // 0 if not known (an override, a missing key)
	Key  string
	Msg  string // what and why; hint
}

func (e *Error) Error() string {
	var parts []string
	switch {
	case e.Line > 0:
		parts = append(parts, fmt.Sprintf("%s:%d", e.File, e.Line))
	case e.File != "": // "" if flags of a verb stand for a file
		parts = append(parts, e.File)
	}
	if e.Key != "" {
		parts = append(parts, e.Key)
	}
	return strings.Join(append(parts, e.Msg), ": ")
}

// ErrConfig is wrapped by every error of this package.
var ErrConfig = errors.New("configuration")

// Is makes errors.Is(err, ErrConfig) true.
func (e *Error) Is(target error) bool { return target == ErrConfig }
