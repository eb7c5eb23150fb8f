package jsonkeys

import (
	"encoding/json"
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

// TestShallow: a key twice is found as deep as was asked for, whatever strings look like, and not deeper.
func TestShallow(t *testing.T) {
	for _, text := range []string{
		`{}`, `[`, ``, `"`, `{"a`, `{"a\`, `{"a": {"b": {"c": 1, "c": 2}}}`, `{"a": "a", "b": "\"a\": 1"}`, `[{"a": 1}, {"a": 1}]`, `{"a": ["b", "b", {"b": {"b": 1}}]}`, `}}}{"a": 1}`, `{"a": 1}]`,
	} {
		if err := Shallow([]byte(text), 2); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{`{"a": 1, "a": 1}`, `{"a" : {"x": [1, {"y": 1}]}, "a"` + "\n" + `: 2}`, `{"b": {"a": "}", "a": 2}}`, `{"\u0061": 1, "a": 2}`, `[{"a": {}, "a": []}]`} {
		if err := Shallow([]byte(text), 2); err == nil || !strings.Contains(err.Error(), `"a" is given twice`) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestExplain: what is wrong is said without a word of Go, where it is, and with something to do.
func TestExplain(t *testing.T) {
	for text, want := range map[string]string{
		`{"size": "7"}`:     "size is a text where a whole number",
		`{"size": 7.5}`:     "size is 7.5 where a whole number",
		`{"size": true}`:    "size is true or false where a whole number",
		`{"on": "false"}`:   "on is a text where true or false",
		`{"list": {}}`:      "list is an object where a list",
		`{"rate": []}`:      "rate is a list where a number",
		`[]`:                "a list where an object",
		"{\n\"size\": NaN}": "line 2: ",
		`{"size": 7`:        "line 1: ",
		"":                  "it is empty",
		"\xef\xbb\xbf{}":    "a byte order mark",
		"\xff\xfe{\x00":     "a byte order mark",
		"version https://git-lfs.github.com/spec/v1\noid sha256:ab": "a pointer of Git LFS, which stands for the file; hint: git lfs pull",
		"<!DOCTYPE html><html>": "a web page",
		"PK\x03\x04":            "a ZIP file",
	} {
		var v struct {
			Size int     `json:"size"`
			On   bool    `json:"on"`
			Rate float64 `json:"rate"`
			List []int   `json:"list"`
		}
		err := Explain([]byte(text), json.Unmarshal([]byte(text), &v))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hint: ") == strings.HasPrefix(want, "line ") || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if err := Explain([]byte("{}"), nil); err != nil {
		t.Error(err)
	}
}
