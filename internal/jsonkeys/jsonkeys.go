// Package jsonkeys finds what JSON allows and nobody means: the same key twice in one object. Programs differ in which
// of the two they take, so a file that has one is refused rather than guessed at.
package jsonkeys

import (
	"bytes"
	"encoding/json"
	"fmt"
)

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
					return fmt.Errorf("the key %q is given twice; hint: leave one of the two", t)
				}
				seen[t], key = true, false
				continue
			}
		}
		key = len(objects) > 0 && objects[len(objects)-1] != nil
	}
}
