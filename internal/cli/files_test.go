package cli

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/internal/filelock"
)

// TestAbandoned: what killed processes have left of a file goes when it is next written; what is locked, what is of
// this moment, and what is not ours stays.
func TestAbandoned(t *testing.T) {
	dir := t.TempDir()
	const left, ofAnother, fresh = ".result.0123456789abcdef", ".result.00000000000000aa", ".result.00000000000000bb"
	strangers := []string{".result.0123456789abcdex", ".result.txt", ".result.0123456789abcdef0", ".other.0123456789abcdef"}
	for _, name := range append([]string{left, ofAnother, fresh}, strangers...) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("half"), 0o644); err != nil {
			t.Fatal(err)
		}
		if old := time.Now().Add(-time.Hour); name != fresh {
			if err := os.Chtimes(path, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	writing, err := os.OpenFile(filepath.Join(dir, ofAnother), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writing.Close()
	if held, err := filelock.Try(writing); !held || err != nil {
		t.Skipf("no locks here: %v", err)
	}
	if err := WriteTo(filepath.Join(dir, "result"), func(w io.Writer) error { return Wrote(io.WriteString(w, "whole")) }); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		got = append(got, e.Name())
	}
	want := append([]string{"result", ofAnother, fresh}, strangers...)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
