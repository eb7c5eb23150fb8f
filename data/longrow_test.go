package data

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/data/bpe"
)

// TestLongRows: rows whose text is read in pieces have the documents that they have as a whole, wherever pieces end; what is wrong with them is an
// error that names the line.
func TestLongRows(t *testing.T) {
	const unit = `gold \n \u00e9\ud83d\ude00\ud83d é \" \\ `
	long := strings.Repeat(unit, 3*longLine/len(unit))
	text := func(literal string) string {
		var s string
		must(t, json.Unmarshal([]byte(`"`+literal+`"`), &s))
		return s
	}
	type row struct {
		row, want, fault string
		names            []string
	}
	rows := map[string]row{
		"alone":                     {row: `{"text": "` + long + `"}`, want: text(long)},
		"last":                      {row: `{"id": [1, {"text": "no"}], "meta": {"a": "}"}, "text" : "` + long + `" } `, want: text(long)},
		"first":                     {row: `{"text": "` + long + `", "id": [1, {"text": "no"}], "system": null}`, want: text(long)},
		"carriage return":           {row: `{"text": "` + long + `"}` + "\r", want: text(long)},
		"another name":              {row: `{"text": 5, "content": "` + long + `"}`, want: text(long), names: []string{"content"}},
		"the second name":           {row: `{"raw_content": "` + long + `", "id": 3}`, want: text(long), names: []string{"text", "raw_content"}},
		"beside a short better one": {row: `{"text": "a", "raw_content": "` + long + `"}`, want: "a", names: []string{"text", "raw_content"}},
		"before a short better one": {row: `{"raw_content": "` + long + `", "text": "a"}`, fault: "another field says", names: []string{"text", "raw_content"}},
		"twice":                     {row: `{"text": "` + long + `", "text": "a"}`, fault: "another field says"},
		"two long ones":             {row: `{"id": "` + long + `", "text": "` + long + `"}`, want: text(long)},
		"no end":                    {row: `{"text": "` + long, fault: "the string does not end"},
		"half an escape":            {row: `{"text": "` + long + `\u00`, fault: "the string has an unknown escape"},
		"no brace":                  {row: `{"text": "` + long + `"`, fault: "a comma or } is expected"},
		"more after it":             {row: `{"text": "` + long + `"} {}`, fault: "there is more after the object"},
		"a tabulator":               {row: `{"text": "` + long + "\t" + `"}`, fault: fmt.Sprintf("byte %d of the line: the string has an unescaped control character", len(`{"text": "`)+len(long)+1)},
	}
	for k := range 12 { // the first piece ends at every byte of two escapes, or of characters
		unit := []string{`\ud83d\ude00`, "é水"}[k%2]
		literal := "xyzxyzxyzxyz"[:k/2] + strings.Repeat(unit, 5*longLine/2/len(unit))
		rows[fmt.Sprint("behind ", k/2, " bytes of ", unit)] = row{row: `{"text":"` + literal + `"}`, want: text(literal)}
	}
	for name, c := range rows {
		content := `{"text": "before"}` + "\n" + c.row + "\n" + `{"text": "after"}`
		if c.names != nil {
			content = strings.ReplaceAll(content, `{"text": "before"}`, `{"`+c.names[0]+`": "before"}`)
			content = strings.ReplaceAll(content, `{"text": "after"}`, `{"`+c.names[0]+`": "after"}`)
		}
		corpus, err := OpenCorpus(filepath.Join(write(t, map[string]string{"a.jsonl": content}), "a.jsonl"))
		must(t, err)
		var got []string
		var begun strings.Builder
		stats, err := corpus.read(t.Context(), Options{TextField: c.names}, bpe.GPT2(), func(p piece) error {
			start := 0
			for _, end := range p.ends {
				begun.Write(p.text[start:end.at])
				got = append(got, begun.String())
				begun.Reset()
				start = end.at
			}
			begun.Write(p.text[start:])
			return nil
		})
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) || !strings.Contains(err.Error(), "line 2: ") || !strings.Contains(err.Error(), "hint: ") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || len(got) != 3 || got[0] != "before" || got[1] != c.want || got[2] != "after" || stats.InvalidBytes != 0 || stats.JSONL.Bytes != int64(len(c.want)+len("beforeafter")) {
			t.Errorf("%s: %d documents, %v, %v", name, len(got), stats, err)
		}
	}
}
