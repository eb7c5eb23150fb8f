package parquet

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bound is the memory that reading fixtures may take.
const bound = 1 << 20

func open(data []byte, names ...string) (*Reader, error) {
	return Open(bytes.NewReader(data), int64(len(data)), bound, names...)
}

// all returns the rows of a file as JSON, of all or some columns.
func all(data []byte, names ...string) (rows []string, err error) {
	if len(names) == 0 {
		r, err := open(data)
		if err != nil {
			return nil, err
		}
		names = r.Names()
	}
	r, err := open(data, names...)
	if err != nil {
		return nil, err
	}
	for {
		if err := r.Next(); err == io.EOF {
			return rows, nil
		} else if err != nil {
			return rows, err
		}
		row, err := r.AppendObject(nil, names...)
		if err != nil {
			return rows, err
		}
		rows = append(rows, string(row))
	}
}

// fixtures returns the files that belong to a jsonl, and its lines.
func fixtures(t testing.TB) (files map[string][]byte, lines map[string][]string) {
	t.Helper()
	files, lines = map[string][]byte{}, map[string][]string{}
	paths, err := filepath.Glob("testdata/*-*.parquet")
	must(t, err)
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".parquet")
		files[name], err = os.ReadFile(path)
		must(t, err)
		rows, _, _ := strings.Cut(name, "-")
		text, err := os.ReadFile("testdata/" + rows + ".jsonl")
		must(t, err)
		lines[name] = strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	if len(files) < 25 {
		t.Fatalf("%d fixtures", len(files))
	}
	return files, lines
}

func decoded(t testing.TB, text string) (v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	must(t, d.Decode(&v))
	return v
}

// present is a value without members that are null, at any depth. Nulls in lists stay.
func present(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, member := range v {
			if v[key] = present(member); member == nil {
				delete(v, key)
			}
		}
	case []any:
		for i, item := range v {
			v[i] = present(item)
		}
	}
	return v
}

// TestRows: rows are those that Arrow says a file has, whoever wrote it and however, without members that are null.
func TestRows(t *testing.T) {
	files, lines := fixtures(t)
	for name, data := range files {
		rows, err := all(data)
		if err != nil || len(rows) != len(lines[name]) {
			t.Errorf("%s: %d rows, want %d; %v", name, len(rows), len(lines[name]), err)
			continue
		}
		for i, row := range rows {
			if got, want := decoded(t, row), present(decoded(t, lines[name][i])); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, row %d:\n%s, want\n%s", name, i+1, row, lines[name][i])
				break
			}
		}
	}
}

// TestSkipping: a column that is asked for in only some rows gives the values of these, and after the last row
// there are no more.
func TestSkipping(t *testing.T) {
	files, _ := fixtures(t)
	for name, data := range files {
		r, err := open(data)
		must(t, err)
		column := r.Names()[len(r.Names())-1]
		want, err := all(data, column)
		must(t, err)
		for every := 2; every < 9; every += 3 {
			r, err := open(data, column)
			must(t, err)
			for i := range want {
				must(t, r.Next())
				if i%every != every/2 {
					continue
				}
				if got, err := r.AppendObject(nil, column); err != nil || string(got) != want[i] || r.Row() != int64(i+1) {
					t.Fatalf("%s, row %d of %d: %s, %v, want %s", name, r.Row(), i+1, got, err, want[i])
				}
			}
			for range 2 {
				if err := r.Next(); err != io.EOF {
					t.Errorf("%s: behind the last row: %v", name, err)
				}
			}
		}
	}
}
