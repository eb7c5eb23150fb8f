package data

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestLongRows: rows whose text is read in pieces have the documents that they have as a whole, wherever pieces end; what is wrong with them is an
// error that names the line, or leaves them out where that is wanted. So it is with elements of an array.
func TestLongRows(t *testing.T) {
	const unit = `gold \n \u00e9\ud83d\ude00\ud83d é \" \\ `
	long := strings.Repeat(unit, 3*longLine/len(unit))
	text := func(literal string) string {
		var s string
		must(t, json.Unmarshal([]byte(`"`+literal+`"`), &s))
		return s
	}
	rows := map[string]longRow{
		"alone":                     {row: `{"text": "` + long + `"}`, want: text(long)},
		"last":                      {row: `{"id": [1, {"text": "no"}], "meta": {"a": "}"}, "text" : "` + long + `" } `, want: text(long)},
		"first":                     {row: `{"text": "` + long + `", "id": [1, {"text": "no"}], "system": null}`, want: text(long)},
		"carriage return":           {row: `{"text": "` + long + `"}` + "\r", want: text(long)},
		"another name":              {row: `{"text": 5, "content": "` + long + `"}`, want: text(long), names: []string{"content"}},
		"the second name":           {row: `{"raw_content": "` + long + `", "id": 3}`, want: text(long), names: []string{"text", "raw_content"}},
		"beside a short better one": {row: `{"text": "a", "raw_content": "` + long + `"}`, want: "a", names: []string{"text", "raw_content"}},
		"before a short better one": {row: `{"raw_content": "` + long + `", "text": "a"}`, fault: "another field says", names: []string{"text", "raw_content"}},
		"twice":                     {row: `{"text": "` + long + `", "text": "a"}`, fault: "is given twice"},
		"two long ones":             {row: `{"id": "` + long + `", "text": "` + long + `"}`, want: text(long)},
		"no end":                    {row: `{"text": "` + long, fault: "the string does not end"},
		"half an escape":            {row: `{"text": "` + long + `\u00`, fault: "the string has an unknown escape"},
		"no brace":                  {row: `{"text": "` + long + `"`, fault: "a comma or } is expected"},
		"more after it":             {row: `{"text": "` + long + `"} {}`, fault: "there is more after the object"},
		"a tabulator":               {row: `{"text": "` + long + "\t" + `"}`, fault: fmt.Sprintf("byte %d of the row: the string has an unescaped control character", len(`{"text": "`)+len(long)+1)},
	}
	for k := range 12 { // the first piece ends at every byte of two escapes, or of characters
		unit := []string{`\ud83d\ude00`, "é水"}[k%2]
		literal := "xyzxyzxyzxyz"[:k/2] + strings.Repeat(unit, 5*longLine/2/len(unit))
		rows[fmt.Sprint("behind ", k/2, " bytes of ", unit)] = longRow{row: `{"text":"` + literal + `"}`, want: text(literal)}
	}
	rows["long, and no text"] = longRow{row: `{"prompt": "` + strings.Repeat("gold ", maxLine/2) + `", "completion": "a"}`, fault: "a row of more than 16.0 MiB"}
	ways := []string{"line", "element, skipped", "line, skipped", "element"}
	for i, name := range slices.Sorted(maps.Keys(rows)) {
		c := rows[name]
		for k, way := range ways {
			usual := k == 0 || i%2 == 0 && k == i/2%3+1
			if (usual || testkit.AtLevel() == testkit.All) && (k%2 == 0 || json.Valid([]byte(c.row))) {
				c.try(t, name, way)
			}
		}
	}
}

// TestLongTableRows: so it is with rows of tables, of which JSON is made.
func TestLongTableRows(t *testing.T) {
	long := strings.Repeat(`gold \n \u00e9\ud83d\ude00 é `, longLine/10)
	for row, fault := range map[string]string{`{"text":"` + long + `"}`: "", `{"text":"short"}`: "", `{"text":"` + long + `\q"}`: "row 7: "} {
		read := func(add func(r *reader) error) (string, Stats, error) {
			var got strings.Builder
			r := &reader{ctx: t.Context(), cut: bpe.GPT2(), most: maxLine, names: usualField, emit: func(p piece) error {
				got.Write(p.text)
				return nil
			}}
			err := add(r)
			got.Write(r.text)
			return got.String(), r.stats, err
		}
		got, stats, err := read(func(r *reader) error { return r.tableRow([]byte(row), true, 7) })
		want, wantStats, wantErr := read(func(r *reader) error { return r.row([]byte(row), &r.stats.Parquet, "row %d", 7) })
		if err == nil && (got != want || stats != wantStats) || (err == nil) != (wantErr == nil) || err != nil && !strings.Contains(err.Error(), fault) || (err == nil) != (fault == "") {
			t.Errorf("%.40s...: %d bytes, %v, %v, want %d, %v, %v", row, len(got), stats, err, len(want), wantStats, wantErr)
		}
	}
}

// longRow is a row among others, and its document or what is wrong with it.
type longRow struct {
	row, want, fault string
	names            []string
}

// try reads the row as a line or as an element of an array, between two others.
func (c *longRow) try(t *testing.T, name, way string) {
	field := "text"
	if c.names != nil {
		field = c.names[0]
	}
	parts := [...]string{"", "\n", "\n", ""}
	if strings.HasPrefix(way, "element") {
		parts = [...]string{"[", ",", "\n,\n", "]"}
	}
	content := parts[0] + `{"` + field + `": "before"}` + parts[1] + c.row + parts[2] + `{"` + field + `": "after"}` + parts[3]
	corpus, err := OpenCorpus(filepath.Join(write(t, map[string]string{"a.jsonl": content}), "a.jsonl"))
	must(t, err)
	var got []string
	var begun strings.Builder
	skip := strings.HasSuffix(way, "skipped")
	stats, err := corpus.read(t.Context(), Options{TextField: c.names, SkipBad: skip}, bpe.GPT2(), func(p piece) error {
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
	said := stats.FirstBad
	if err != nil {
		said = err.Error()
	}
	want := []string{"before", c.want, "after"}
	switch {
	case c.fault != "" && (!strings.Contains(said, c.fault) || !strings.Contains(said, way[:4]) || !strings.Contains(said, " 2") || !strings.Contains(said, "hint: ")):
		t.Errorf("%s, %s: %q", name, way, said)
	case c.fault != "" && skip:
		want = []string{"before", "after"}
		fallthrough
	case c.fault == "":
		if err != nil || !slices.Equal(got, want) || stats.InvalidBytes != 0 || stats.JSONL.Bytes != int64(len(strings.Join(want, ""))) || stats.Bad != int64(3-len(want)) {
			t.Errorf("%s, %s: %d documents, %v, %v", name, way, len(got), stats, err)
		}
	}
}
