package data

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/data/bpe"
)

// TestTextField: the text of a row is under the first of the named fields that it has, in any order of its keys.
func TestTextField(t *testing.T) {
	for _, c := range []struct{ line, names, want, fault string }{
		{`{"text": "a", "content": "b"}`, "content", "b", ""},
		{`{"content": "b", "text": 5}`, "content", "b", ""},
		{`{"text": "a", "raw_content": "b"}`, "text raw_content", "a", ""},
		{`{"raw_content": "b", "text": "a"}`, "text raw_content", "a", ""},
		{`{"raw_content": "b", "id": 3}`, "text raw_content", "b", ""},
		{`{"text": null, "raw_content": "b"}`, "text raw_content", "b", ""},
		{`{"text": "a", "raw_content": 5}`, "text raw_content", "a", ""},
		{`{"text": 5, "raw_content": "b"}`, "text raw_content", "", `"text" is not a string`},
		{`{"content": null}`, "content", "", `"content" is not a string`},
		{`{"text": "a"}`, "content", "", `no "content", only [text]; hint: set text_field`},
		{`{"text": "a"}`, "content code", "", `no "content" or "code", only [text]; hint: set text_field`},
	} {
		doc, err := appendText([]byte("> "), []byte(c.line), strings.Fields(c.names), anything)
		switch {
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)):
			t.Errorf("%s, %s: %v", c.line, c.names, err)
		case c.fault == "" && (err != nil || string(doc.dst) != "> "+c.want):
			t.Errorf("%s, %s: %q, %v", c.line, c.names, doc.dst, err)
		}
	}
}

// TestTrainOnNamedField: a tokenizer is trained on the text that is read later: that of the named field, without the rows that are left out.
func TestTrainOnNamedField(t *testing.T) {
	text := strings.Repeat("silver and gold and iron\n", 50)
	line := `"` + strings.ReplaceAll(text, "\n", `\n`) + `"}` + "\n"
	dir := write(t, map[string]string{
		"plain.txt":    text,
		"named.jsonl":  `{"text": "zzzzzzzzzzzz", "content": ` + line,
		"broken.jsonl": `{"text": ` + line + "nothing\n",
	})
	train := func(name string, o Options) (*bpe.Tokenizer, error) {
		c, err := OpenCorpus(filepath.Join(dir, name))
		must(t, err)
		return TrainTokenizer(t.Context(), c, 280, o)
	}
	want, err := train("plain.txt", Options{})
	must(t, err)
	for name, o := range map[string]Options{"named.jsonl": {TextField: []string{"content"}}, "broken.jsonl": {SkipBad: true}} {
		if got, err := train(name, o); err != nil || got.Hash() != want.Hash() {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := train("broken.jsonl", Options{}); err == nil {
		t.Error("a bad row is no error")
	}
	c, err := OpenCorpus(filepath.Join(dir, "named.jsonl"))
	must(t, err)
	for _, field := range []string{"text", "content"} { // each has its own tokens in the cache
		tokens, err := Tokenize(t.Context(), c, bpe.GPT2(), dir+"/cache", Options{TextField: []string{field}})
		must(t, err)
		if n := tokens.Stats().JSONL.Bytes; (n == int64(len(text))) != (field == "content") {
			t.Errorf("%s has %d bytes", field, n)
		}
		must(t, tokens.Close())
	}
	if list, err := os.ReadDir(dir + "/cache"); err != nil || len(list) != 2 {
		t.Errorf("%d files in the cache, %v", len(list), err)
	}
}
