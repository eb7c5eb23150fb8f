package jsonkeys

import (
	"strings"
	"testing"
)

// TestUnique: a key twice in one object is found at any depth; strings that are not keys, and keys of other objects, are none.
func TestUnique(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `"a"`, ``, `{`, `{"a"`, `{"a": "a", "b": "a"}`, `{"a": {"a": 1}, "b": {"a": 1}}`, `[{"a": 1}, {"a": 2}, "a", "a"]`, `{"a": ["b", "b"], "b": null}`,
		`{"a": [], "b": {}, "c": [{"a": 1}]}`,
	} {
		if err := Unique([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{
		`{"a": 1, "a": 1}`, `{"b": {"a": 1, "c": [], "a": 2}}`, `[1, {"a": {}, "a": []}]`, `{"a": "a", "b": "x", "a": 3}`, `{"\u0061": 1, "a": 2}`,
	} {
		if err := Unique([]byte(text)); err == nil || !strings.Contains(err.Error(), `"a" is given twice`) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
