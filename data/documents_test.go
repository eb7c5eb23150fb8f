package data

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// A document begins after the last end of text before it in its sequence, or with the
// sequence: starts are at most the token's own position, and ascending.
func TestStarts(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		sequence := rapid.IntRange(1, 12).Draw(t, "sequence")
		tokens := rapid.SliceOfN(rapid.Int32Range(0, 3), sequence, sequence*4).Draw(t, "tokens")
		tokens = tokens[:len(tokens)/sequence*sequence]
		starts := make([]int32, len(tokens))
		Starts(starts, tokens, sequence, 2)
		for i, start := range starts {
			first, want := i-i%sequence, 0
			for j, token := range tokens[first:i] {
				if token == 2 {
					want = j + 1
				}
			}
			if int(start) != want {
				t.Fatalf("token %d of %v in sequences of %d: its document begins at %d, want %d", i, tokens, sequence, start, want)
			}
		}
	})
}

// The length is that of the documents where they are equal and fit the windows, and that
// of the window where no document ends.
func TestDocumentLength(t *testing.T) {
	for text, want := range map[string]int{
		strings.Repeat("{\"text\": \"seven b\"}\n", 100):    8, // and the end of text
		"{\"text\": \"" + strings.Repeat("x", 2000) + "\"}": 64,
	} {
		dir := write(t, map[string]string{"a.jsonl": text})
		c, err := OpenCorpus(dir + "/a.jsonl")
		must(t, err)
		tokens, err := Tokenize(t.Context(), c, bytesTokenizer(t), dir, Options{Workers: 1})
		must(t, err)
		if have := tokens.DocumentLength(64); have < want-1 || have > want { // windows cut documents
			t.Errorf("%d tokens: documents of %d, want %d", tokens.Len(), have, want)
		}
		if have := tokens.DocumentLength(1 << 24); have < 1 {
			t.Errorf("windows longer than the text: documents of %d", have)
		}
		tokens.Close()
	}
}

// For any length, at least one window is sampled, no more than there are, and about
// lengthTokens tokens at most.
func TestWindowsOf(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		sequence := rapid.Int64Range(1, 1<<24).Draw(t, "sequence")
		count := rapid.Int64Range(sequence, 1<<44).Draw(t, "count")
		if n := windowsOf(count, sequence); n < 1 || n*sequence > min(count, lengthTokens) {
			t.Fatalf("%d windows of %d of %d tokens", n, sequence, count)
		}
	})
}

// Documents of the length found have the requested number of pairs, if any length does.
func TestLengthOf(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		sequence := rapid.IntRange(1, 300).Draw(t, "sequence")
		length := rapid.IntRange(1, sequence).Draw(t, "length")
		pairs := func(length int) (sum int64) {
			for i := range sequence {
				sum += int64(i%length) + 1
			}
			return sum
		}
		if have := pairs(lengthOf(pairs(length), sequence)); have != pairs(length) {
			t.Fatalf("%d pairs, want %d", have, pairs(length))
		}
	})
}
