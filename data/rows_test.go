package data

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/data/bpe"
)

const tables = "parquet/testdata/"

// TestRowsAreLines: Parquet files give the tokens, the marks and the counts of the same rows as JSONL.
func TestRowsAreLines(t *testing.T) {
	tokenizer, template := opened(t, "chatml")
	read := func(path string) ([]int32, Stats) {
		c, err := OpenCorpus(path)
		must(t, err)
		tokens, err := Tokenize(context.Background(), c, tokenizer, t.TempDir(), Options{Workers: 2, Chat: template, Progress: func(done, total int64) {
			if done > total {
				t.Errorf("%s: %d of %d bytes", path, done, total)
			}
		}})
		must(t, err)
		defer tokens.Close()
		all := make([]int32, tokens.Len())
		tokens.Copy(all, 0)
		return all, tokens.Stats()
	}
	for _, rows := range []string{"texts", "chats"} {
		want, asLines := read(tables + rows + ".jsonl")
		paths, err := filepath.Glob(tables + rows + "-*.parquet")
		must(t, err)
		if len(paths) < 4 || asLines.JSONL.Documents < 8 {
			t.Fatalf("%s: %d files, %v", rows, len(paths), asLines)
		}
		for _, path := range paths {
			got, asRows := read(path)
			if !slices.Equal(got, want) {
				t.Errorf("%s: other tokens than as JSONL", path)
			}
			if asRows.Parquet != asLines.JSONL || asRows.Empty != asLines.Empty || asRows.JSONL != (FormatStats{}) ||
				asRows.String() != strings.Replace(asLines.String(), "JSONL", "Parquet", 1) {
				t.Errorf("%s: %v, want %v", path, asRows, asLines)
			}
			if asRows.Conversations() != asLines.Conversations() || asRows.Documents() != asLines.Documents() || asRows.Bytes() != asLines.Bytes() ||
				asRows.Prompts() != asLines.Prompts() {
				t.Errorf("%s: sums of %v", path, asRows)
			}
		}
		if rows == "chats" && (asLines.JSONL.Conversations != 6 || asLines.JSONL.Prompts != 1 || asLines.JSONL.Documents != 8) {
			t.Errorf("%+v", asLines.JSONL)
		}
	}
}

// TestRowErrors: what is wrong in a Parquet file is reported with the file and the row.
func TestRowErrors(t *testing.T) {
	for name, want := range map[string]string{
		"null":       "row 1: all columns that could be read are null (text); hint: ",
		"other":      `no "text", only [content]`,
		"number":     `row 1: "text" is not a string; hint: `,
		"preference": "row 1: \"prompt\", \"chosen\" and \"rejected\" are not all given",
		"brotli":     `row 1: column "text": compression with Brotli is not supported yet; hint: `,
		"time":       `row 1: column "messages": TIMESTAMP is not supported yet; hint: `,
		"chats-item": "row 1: a conversation needs a chat template",
	} {
		c, err := OpenCorpus(tables + name + ".parquet")
		must(t, err)
		_, _, err = documents(c)
		if err == nil || !strings.Contains(err.Error(), name+".parquet: ") || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if strings.Contains(want, "not supported") && !errors.Is(err, ErrNotSupported) {
			t.Errorf("%s: %v is not ErrNotSupported", name, err)
		}
	}
	// A table without rows has no documents, and what is next to a text is not read.
	c, err := OpenCorpus(tables+"empty.parquet", tables+"beside.parquet")
	must(t, err)
	got, stats, err := documents(c)
	if want := (Stats{Parquet: FormatStats{Files: 2, Documents: 2, Bytes: 2, Beside: 2}, Empty: 1}); !slices.Equal(got, []string{"x", "y"}) || stats != want || err != nil {
		t.Errorf("%q, %+v, %v", got, stats, err)
	}
}

// TestSkipBad: a bad row is an error, or counted and left out as a whole, with the first named; the good ones are the
// tokens that they are without it, and other text has another entry in the cache.
func TestSkipBad(t *testing.T) {
	good := []string{`{"text": "one"}`, `{"prompt": "a", "completion": "b"}`, `{"text": "two"}`}
	bad := []string{`{"text": 7}`, `{"txt": "x"}`, `{"text": "x"`, `not JSON`, `{"prompt": "x", "completion": 3}`, `{"prompt": "x", "completion": "y", "system": "z"}`,
		`{"chosen": "x"}`, `{"messages": "x"}`, `"x"`, `{"text": null}`}
	clean := write(t, map[string]string{"a.jsonl": strings.Join(good, "\n")})
	read := func(dir string, skip bool) (*Tokens, error) {
		c, err := OpenCorpus(dir + "/a.*")
		must(t, err)
		return Tokenize(context.Background(), c, bpe.GPT2(), dir+"/cache", Options{SkipBad: skip})
	}
	want, err := read(clean, false)
	must(t, err)
	defer want.Close()
	for i, row := range bad {
		for at := range len(good) + 1 {
			dir := write(t, map[string]string{"a.jsonl": strings.Join(slices.Insert(slices.Clone(good), at, row), "\n") + "\n"})
			if _, err := read(dir, false); err == nil || !errors.Is(err, ErrContent) {
				t.Errorf("%s: %v", row, err)
			}
			got, err := read(dir, true)
			if err != nil {
				t.Errorf("%s: %v", row, err)
				continue
			}
			if s := got.Stats(); got.Hash() != want.Hash() || s.Bad != 1 || !strings.Contains(s.FirstBad, fmt.Sprintf("line %d", at+1)) || s.Documents() != 3 || s.Prompts() != 1 {
				t.Errorf("%d: %s at %d: %v", i, row, at, s)
			}
			got.Close()
		}
	}
	dir := write(t, map[string]string{"a.json": "[" + good[0] + "," + bad[0] + "," + good[1] + "," + good[2] + "]"})
	got, err := read(dir, true)
	must(t, err)
	defer got.Close()
	if s := got.Stats(); got.Hash() != want.Hash() || s.Bad != 1 || !strings.Contains(s.FirstBad, "element 2 of the array") {
		t.Errorf("an array: %v", s)
	}
}
