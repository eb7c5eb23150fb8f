package bpe

import (
	"bytes"
	"context"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// The merges of the trainer are those of Hugging Face's, pair for pair.
func TestTrainAsHuggingFace(t *testing.T) {
	text, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	for p := range patterns {
		want := fixtureTokenizers(t)[patterns[p].name]
		words := NewCounter(Pattern(p))
		words.Add(text)
		got, err := Train(context.Background(), words, 700, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.VocabularySize() != want.VocabularySize() || len(got.merges) != len(want.merges) {
			t.Fatalf("%v: %d tokens by %d merges, want %d by %d", got.steps[0].name,
				got.VocabularySize(), len(got.merges), want.VocabularySize(), len(want.merges))
		}
		for rank, m := range got.merges {
			w := want.merges[rank]
			if !bytes.Equal(got.Token(m.Left), want.Token(w.Left)) || !bytes.Equal(got.Token(m.Right), want.Token(w.Right)) {
				t.Fatalf("%v: merge %d joins %q and %q, want %q and %q", got.steps[0].name, rank,
					got.Token(m.Left), got.Token(m.Right), want.Token(w.Left), want.Token(w.Right))
			}
		}
	}
}

// Training depends on the counts alone: not on the order or the split of the text.
func TestTrainDeterministic(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.StringMatching(`[abc ]{0,30}`), 1, 10).Draw(t, "texts")
		one, parts := NewCounter(PatternGPT2), NewCounter(PatternGPT2)
		one.Add([]byte("seed"))
		parts.Add([]byte("seed"))
		for _, text := range texts {
			one.Add([]byte(text))
		}
		for _, text := range slices.Backward(texts) {
			part := NewCounter(PatternGPT2)
			part.Add([]byte(text))
			parts.Merge(part)
		}
		a, err := Train(context.Background(), one, 280, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Train(context.Background(), parts, 280, nil)
		if err != nil {
			t.Fatal(err)
		}
		if a.Hash() != b.Hash() {
			t.Fatal("two vocabularies from the same words")
		}
	})
}

func TestTrainErrors(t *testing.T) {
	words := NewCounter(PatternGPT2)
	if _, err := Train(context.Background(), words, 300, nil); err == nil {
		t.Error("trained on nothing")
	}
	words.Add([]byte("text"))
	for _, size := range []int{-1, 0, 256, MaxVocabulary + 1} {
		if _, err := Train(context.Background(), words, size, nil); err == nil {
			t.Errorf("trained a vocabulary of %d", size)
		}
	}
}
