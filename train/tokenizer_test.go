package train

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/data/bpe"
)

// TestKeepTokenizer: a tokenizer gets to the cache, and what a process left there that was killed the day before goes.
func TestKeepTokenizer(t *testing.T) {
	words := bpe.NewCounter(bpe.PatternGPT2)
	words.Add([]byte("word"))
	trained, err := bpe.Train(t.Context(), words, 257, nil)
	if err != nil {
		t.Fatal(err)
	}
	cache, dayBefore := t.TempDir(), time.Now().Add(-25*time.Hour)
	for _, name := range []string{".tmp-1", ".tmp-2", "other"} {
		dir := filepath.Join(cache, name)
		if err := os.MkdirAll(filepath.Join(dir, "tokenizer"), 0o755); err != nil {
			t.Fatal(err)
		}
		if name == ".tmp-2" { // of this moment
			continue
		}
		if err := os.Chtimes(dir, dayBefore, dayBefore); err != nil {
			t.Fatal(err)
		}
	}
	if err := keepTokenizer(trained, filepath.Join(cache, "bpe-257")); err != nil {
		t.Fatal(err)
	}
	var names []string
	list, err := os.ReadDir(cache)
	for _, e := range list {
		names = append(names, e.Name())
	}
	if want := []string{".tmp-2", "bpe-257", "other"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("the cache has %q, want %q: %v", names, want, err)
	}
}

// TestKeepOwn: a run has its tokenizer, whatever a start that was killed left in its place and beside it.
func TestKeepOwn(t *testing.T) {
	words := bpe.NewCounter(bpe.PatternGPT2)
	words.Add([]byte("word"))
	trained, err := bpe.Train(t.Context(), words, 257, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "tokenizer", "bpe-257")
	for name, text := range map[string]string{"bpe-257/tokenizer.json": "", ".tmp-bpe-257/tokenizer.json": `{"mod`} {
		path := filepath.Join(filepath.Dir(dir), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second finds it
		if err := keepOwn(trained, dir); err != nil {
			t.Fatal(err)
		}
		if kept, err := bpe.Load(dir); err != nil || kept.Hash() != trained.Hash() {
			t.Errorf("it is not there: %v", err)
		}
	}
	if names, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(names) != 1 {
		t.Errorf("beside it there is more: %v, %v", names, err)
	}
}
