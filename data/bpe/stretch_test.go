package bpe

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestCut: a stretch without a boundary that is cut has the ids of the whole, whatever follows; and it is cut far from its
// beginning, but by some published tokenizers: theirs may have no place that can be proved in what repeats.
func TestCut(t *testing.T) {
	r := testkit.Rand(t)
	all := fixtureTokenizers(t)
	maps.Copy(all, sentencePieces(t))
	p := readPublished(t)
	for name, c := range p.Cases {
		tokenizer, err := Parse(changed(t, c.Base, c.Set, c.Without, c.Merges), nil)
		must(t, err)
		all["published "+name] = tokenizer
	}
	runs := []string{"a", "e", "the", " ", "\n", " \n", "\r\n", "1", "12 ", "'", "'s", "!", "=-", "\u00e9", "\u6c34", "\u0436\u0430", "\U0001f600", "aB", "\t", "_", "  a"}
	known := map[string]int{}
	for _, name := range testkit.Sample(slices.Sorted(maps.Keys(all)), 2, 4) {
		tokenizer, published := all[name], strings.HasPrefix(name, "published ")
		for _, unit := range runs {
			before := strings.Repeat(unit, 1+r.IntN(3))
			begin := []string{"", "x ", "Q", EndOfText}[r.IntN(4)]
			text := []byte(begin + before + strings.Repeat(unit, 3*maxWord/len(unit)))
			n := len(text)
			text = append(text, []string{"", "a", " a", "\n", "s", "9", "\u0301", "!", EndOfText}[r.IntN(9)]...)
			at := tokenizer.Cut(text[:n], false)
			if at == 0 {
				continue
			}
			known[unit]++
			repeated := at > len(begin) // else there is no place in what repeats
			ids := tokenizer.Encode(text[:at])
			if more := tokenizer.Cut(text[at:n], true); more > 0 { // the first one may be behind the beginning
				ids = tokenizer.NewEncoder().Continue(ids, text[at:at+more])
				at += more
			}
			if ids = tokenizer.NewEncoder().Continue(ids, text[at:]); !slices.Equal(ids, tokenizer.Encode(text)) {
				t.Errorf("%s: %d times %q, cut at %d of %d: other tokens", name, n/len(unit), unit, at, len(text))
			}
			if _, added := tokenizer.normalized.find(text[:n], len(EndOfText), nil); added < 0 && repeated && at < n-maxWord-100 && !published {
				t.Errorf("%s: %d times %q: no later place than %d of %d is known", name, n/len(unit), unit, at, n)
			}
		}
	}
	for _, unit := range runs {
		if known[unit] == 0 {
			t.Errorf("no place to cut is known in any run of %q", unit)
		}
	}
}

// TestCutCharacters: a pre-token that is too long to be merged as one is cut between characters.
func TestCutCharacters(t *testing.T) {
	for name, tokenizer := range fixtureTokenizers(t) {
		text := append([]byte("x"), bytes.Repeat([]byte("\u6c34"), maxWord/2)...)
		at := maxWord - (maxWord-1)%3
		if got, want := tokenizer.Encode(text), encodeParts(tokenizer, text, at); !slices.Equal(got, want) {
			t.Errorf("%s: %d tokens, %d when cut between characters", name, len(got), len(want))
		}
	}
}
