package data

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/data/bpe"
)

// TestFingerprint: corpora of equal names, sizes and times, as reproducible archives make them, are told apart; and a
// file that was overwritten with its time kept is not the one that it was.
func TestFingerprint(t *testing.T) {
	day := time.Unix(0, 0)
	home, err := os.Getwd()
	must(t, err)
	t.Cleanup(func() { os.Chdir(home) })
	var sums [][32]byte
	record := func() {
		c, err := OpenCorpus("corpus/*.txt")
		must(t, err)
		sum, err := c.Fingerprint()
		must(t, err)
		again, err := c.Fingerprint()
		must(t, err)
		if sum != again {
			t.Error("two fingerprints of the same files")
		}
		sums = append(sums, sum)
	}
	put := func(text string) {
		must(t, os.WriteFile("corpus/a.txt", []byte(text), 0o644))
		must(t, os.Chtimes("corpus/a.txt", day, day))
	}
	for _, text := range []string{"one text", "two text"} {
		dir := write(t, map[string]string{"corpus/a.txt": ""})
		must(t, os.Chdir(dir))
		put(text)
		record()
	}
	put("2wo text")
	record()
	for i := range sums {
		for k := range i {
			if sums[i] == sums[k] {
				t.Errorf("corpora %d and %d have the same fingerprint", k, i)
			}
		}
	}
}

// TestHashOfTokens: the hash is that of the tokens, whatever file they come from.
func TestHashOfTokens(t *testing.T) {
	hash := func(text string) [32]byte {
		dir := write(t, map[string]string{"a.txt": text})
		c, err := OpenCorpus(filepath.Join(dir, "a.txt"))
		must(t, err)
		tokens, err := Tokenize(context.Background(), c, bpe.GPT2(), filepath.Join(dir, "cache"), Options{})
		must(t, err)
		defer tokens.Close()
		return tokens.Hash()
	}
	one := hash("first second third")
	if hash("first second third") != one {
		t.Error("the same text has another hash")
	}
	for _, other := range []string{"third second first", "first second thirds", "first second", "first second third third", "first  second third", "First second third", "first second third\n", "irst second third"} {
		if hash(other) == one {
			t.Errorf("%q has the hash of another text", other)
		}
	}
}
