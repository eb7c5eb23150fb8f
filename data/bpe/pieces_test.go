package bpe

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestPieces: merging by the scores of pieces, as SentencePiece does, gives the ids of the tokenizer; where a space is put before
// text that has none only, there is no such form.
func TestPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	for name, tokenizer := range sentencePieces(t) {
		p, ok := tokenizer.Pieces()
		if want := name != "llama2 first" && name != "llama2 always"; ok != want {
			t.Errorf("%s: %v, want %v", name, ok, want)
		}
		if !ok {
			continue
		}
		letters := []rune("  aeinrst.\né你")
		for range testkit.Count(20, 200, 2000) {
			text := make([]rune, r.IntN(40))
			for i := range text {
				text[i] = letters[r.IntN(len(letters))]
			}
			if got, want := p.encode(string(text)), tokenizer.NewEncoder().Encode(nil, []byte(string(text))); !slices.Equal(got, want) {
				t.Fatalf("%s: %q: %v by scores, %v by merges", name, string(text), got, want)
			}
		}
	}
	if _, ok := GPT2().Pieces(); ok {
		t.Error("GPT-2's tokenizer merges bytes")
	}
}

// encode merges by scores.
func (p *Pieces) encode(text string) (ids []int32) {
	if p.Prefix && text != "" {
		text = " " + text
	}
	byText := map[string]int32{}
	for id, piece := range p.List {
		byText[piece.Text] = int32(id)
	}
	var symbols []string
	for _, r := range text {
		if symbols = append(symbols, string(r)); r == ' ' {
			symbols[len(symbols)-1] = underline
		}
	}
	for {
		at, most := -1, float32(math.Inf(-1))
		for i := range len(symbols) - 1 {
			if id, ok := byText[symbols[i]+symbols[i+1]]; ok && p.List[id].Score > most {
				at, most = i, p.List[id].Score
			}
		}
		if at < 0 {
			break
		}
		symbols = slices.Replace(symbols, at, at+2, symbols[at]+symbols[at+1])
	}
	for _, s := range symbols {
		if id, ok := byText[s]; ok {
			ids = append(ids, id)
			continue
		}
		for _, b := range []byte(s) {
			ids = append(ids, byText[fmt.Sprintf("<0x%02X>", b)])
		}
	}
	return ids
}
