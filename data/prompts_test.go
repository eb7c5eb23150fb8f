package data

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestPrompts: the tokens of a prompt are marked, those of its completion and the end of
// text are not, wherever the corpus is cut into pieces, and also where the first prompt
// comes after a megabyte of text whose tokens were written in two bytes.
func TestPrompts(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	words := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString([]string{"fire ", "stone\n", "salt, ", "é ", "\n\n", "mercury"}[r.IntN(6)])
		}
		return b.String()
	}
	tokenizer := bpe.GPT2()
	e := tokenizer.NewEncoder()
	end, _ := tokenizer.EndOfText()
	var want []int32
	var lines strings.Builder
	add := func(prompt, completion string, pair bool) {
		object := map[string]string{"text": prompt + completion}
		if pair {
			object = map[string]string{"prompt": prompt, "completion": completion}
		}
		line, err := json.Marshal(object)
		must(t, err)
		lines.Write(append(line, '\n'))
		if !pair {
			want = append(e.Encode(want, []byte(prompt+completion)), end)
			return
		}
		for _, id := range e.Encode(nil, []byte(prompt)) {
			want = append(want, Mark(id))
		}
		want = append(e.Encode(want, []byte(completion)), end)
	}
	add(words(240000), "", false)
	for range 400 {
		add(words(r.IntN(30)), words(1+r.IntN(30)), r.IntN(4) > 0)
	}
	add(words(240000), words(3), true) // a prompt of several pieces
	add(words(3), words(240000), true)
	add("only a prompt", "", true)
	add("", "only a completion", true)

	dir := write(t, map[string]string{"a.jsonl": lines.String()})
	c, err := OpenCorpus(dir + "/*")
	must(t, err)
	for _, workers := range []int{1, 3} {
		tokens, err := Tokenize(context.Background(), c, tokenizer, filepath.Join(t.TempDir(), "new"), Options{Workers: workers})
		must(t, err)
		got := make([]int32, tokens.Len())
		tokens.Copy(got, 0)
		if !slices.Equal(got, want) {
			i := 0
			for i < min(len(got), len(want)) && got[i] == want[i] {
				i++
			}
			t.Fatalf("%d tokens, want %d; token %d is another", len(got), len(want), i)
		}
		if n := tokens.Stats().JSONL.Prompts; n < 200 || n > 404 || !strings.Contains(tokens.Stats().String(), fmt.Sprintf("of %d documents with a prompt, only the completion is learnt", n)) {
			t.Errorf("%d documents with a prompt: %v", n, tokens.Stats())
		}
		counts, n := map[int32]float64{}, 0.0
		for _, token := range want {
			if token >= 0 {
				counts[token]++
				n++
			}
		}
		entropy := 0.0
		for _, k := range counts {
			entropy -= k / n * math.Log(k/n)
		}
		if got := Entropy(Stretch{tokens, tokens.All()}); math.Abs(got-entropy) > 1e-9 {
			t.Errorf("entropy %v, of what is learnt %v", got, entropy)
		}
		must(t, tokens.Close())
	}
}

// TestPromptLines: which lines are documents with a prompt, and the errors for others.
func TestPromptLines(t *testing.T) {
	for line, want := range map[string]string{
		`{"prompt":"ab","completion":"c"}`:                         "ab|c",
		`{"completion":"c","id":7,"prompt":"ab"}`:                  "ab|c",
		`{"prompt":"ab","completion":"","id":1,"id":2}`:            "ab|",
		`{"prompt":"","completion":"c"}`:                           "|c",
		`{"prompt":"x","completion":"y","text":"whole"}`:           "|whole",
		`{"prompt":[{"role":"user"}],"completion":2,"text":"all"}`: "|all",
		`{"prompt":"x"}`:     "not both given",
		`{"completion":"x"}`: "not both given",
		`{"prompt":[{"role":"user"}],"completion":"y"}`: "not both given",
	} {
		doc, err := appendText([]byte("> "), []byte(line), usualField, anything)
		if err != nil {
			if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint: ") || string(doc.dst) != "> " {
				t.Errorf("%s: %q, %v; want %s", line, doc.dst, err, want)
			}
			continue
		}
		if got := string(doc.dst[2:2+doc.given]) + "|" + string(doc.dst[2+doc.given:]); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

// TestPairs: a given token is an input like any other but not a target.
func TestPairs(t *testing.T) {
	window := []int32{5, Mark(0), Mark(7), 3, 9}
	tokens, targets := make([]int32, 4), make([]int32, 4)
	if n := Pairs(tokens, targets, window); n != 2 {
		t.Errorf("%d targets, want 2", n)
	}
	if !slices.Equal(tokens, []int32{5, 0, 7, 3}) || !slices.Equal(targets, []int32{-1, -1, 3, 9}) {
		t.Errorf("tokens %v, targets %v", tokens, targets)
	}
}
