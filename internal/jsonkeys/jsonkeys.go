// Package jsonkeys finds what JSON allows and nobody means: the same key twice in one object. Programs differ in which
// of the two they take, so a file that has one is refused rather than guessed at.
package jsonkeys

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/suggest"
)

// Explain says in a user's words why a text is not the JSON that was expected: encoding/json speaks of types of Go.
func Explain(text []byte, err error) error {
	if err == nil {
		return nil
	}
	if is, hint := bounded.Begins(text[:min(len(text), bounded.LongestBeginning)], false); is != "" {
		return fmt.Errorf("it is %s; hint: %s", is, hint)
	}
	switch {
	case bytes.HasPrefix(text, []byte("\xef\xbb\xbf")), bytes.HasPrefix(text, []byte("\xff\xfe")), bytes.HasPrefix(text, []byte("\xfe\xff")):
		return fmt.Errorf("it begins with a byte order mark, which JSON does not have; hint: save it as UTF-8 without one")
	case len(bytes.TrimSpace(text)) == 0:
		return fmt.Errorf("it is empty; hint: fetch it again")
	}
	var other *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &other):
		got, number, _ := strings.Cut(other.Value, " ")
		got = cmp.Or(number, map[string]string{"bool": "true or false", "array": "a list", "object": "an object", "string": "a text", "number": "a number"}[got], got)
		err = fmt.Errorf("%s where %s is expected", strings.TrimPrefix(leaf(other.Field)+" is "+got, " is "), wanted(other.Type))
		return suggest.Add(err, "check that it is the file that was published")
	case errors.As(err, &syntax):
		line := 1 + bytes.Count(text[:min(max(syntax.Offset, 0), int64(len(text)))], []byte("\n"))
		return fmt.Errorf("line %d: %w", line, err) // what it should be, the caller knows
	}
	return err
}

// leaf is the last name of a field, without those of Go's embedded structs before it.
func leaf(field string) string { return field[strings.LastIndexByte(field, '.')+1:] }

// wanted says what a type of Go is in JSON.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number, not too large,"
	case reflect.Slice, reflect.Array:
		return "a list"
	}
	return "an object"
}

// Shallow is Unique for the keys of objects at most so deep; 1 is the text's own. It is fast, for texts of many megabytes.
func Shallow(text []byte, most int) error {
	open := make([]map[string]bool, most+1) // keys of the open objects, by depth
	for depth, i := 0, 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			if depth++; depth <= most {
				open[depth] = nil
				if text[i] == '{' {
					open[depth] = map[string]bool{}
				}
			}
		case '}', ']':
			depth = max(depth-1, 0)
		case '"':
			from := i
			i = stringEnd(text, i)
			if depth < 1 || depth > most || open[depth] == nil || i >= len(text) || !bytes.HasPrefix(bytes.TrimLeft(text[i+1:min(len(text), i+9)], " \t\r\n"), []byte(":")) {
				continue
			}
			var key string
			if json.Unmarshal(text[from:i+1], &key) == nil && open[depth][key] {
				return twice(key)
			}
			open[depth][key] = true
		}
	}
	return nil
}

// stringEnd returns where the string ends that begins with a quote at from; len(text): nowhere.
func stringEnd(text []byte, from int) int {
	for at := from + 1; ; {
		n := bytes.IndexByte(text[at:], '"')
		if n < 0 {
			return len(text)
		}
		at += n
		escapes := 0
		for text[at-1-escapes] == '\\' { // the quote at from ends this
			escapes++
		}
		if escapes%2 == 0 {
			return at
		}
		at++
	}
}

func twice(key string) error {
	return fmt.Errorf("the key %q is given twice; hint: leave one of the two", key)
}

// Unique returns an error that names the first key that an object has twice, at any depth. Text that is not JSON is
// left to whoever decodes it.
func Unique(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	var objects []map[string]bool // open ones, nil for lists
	key := false                  // the next token is a key, or the end of an object
	for {
		token, err := d.Token()
		if err != nil {
			return nil
		}
		switch t := token.(type) {
		case json.Delim:
			switch t {
			case '{':
				objects = append(objects, map[string]bool{})
			case '[':
				objects = append(objects, nil)
			default:
				objects = objects[:len(objects)-1]
			}
		case string:
			if key {
				seen := objects[len(objects)-1]
				if seen[t] {
					return twice(t)
				}
				seen[t], key = true, false
				continue
			}
		}
		key = len(objects) > 0 && objects[len(objects)-1] != nil
	}
}
