package train

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestTextDocuments: attention is priced with the documents of all sources, as often as they are read. Tokens are named by their source.
func TestTextDocuments(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	for name, words := range map[string]int{"short": 7, "long": 23} {
		line := fmt.Sprintf("{\"text\": %q}\n", strings.TrimSpace(strings.Repeat("a ", words)))
		check(t, os.WriteFile(dir+"/"+name+".jsonl", []byte(strings.Repeat(line, 300)), 0o644))
	}
	check(t, os.WriteFile(dir+"/held.txt", []byte(strings.Repeat("a b ", 99)), 0o644))
	file := runConfig(t, dir)
	open := func(data string) *Text {
		t.Helper()
		spec := settled(t, file, "tokenizer=gpt2", "documents=separate", "validation="+dir+"/held.txt", strings.ReplaceAll(data, "DIR", dir))
		text, err := OpenText(t.Context(), spec, func(string, int64, int64) {})
		check(t, err)
		t.Cleanup(text.Close)
		return text
	}
	spec := settled(t, file, "sequence_length=512", "documents=separate")
	short, long, mixed := open("data=DIR/short.jsonl"), open("data=DIR/long.jsonl"), open("data=[DIR/short.jsonl, {files: DIR/long.jsonl, times: 0.25}]")
	length := func(of *Text) int { return of.Documents(spec).Length }
	if got := length(new(Text)); got != spec.SequenceLength {
		t.Errorf("without a text documents have %d tokens, want those of a window", got)
	}
	pairs := settled(t, file, "sequence_length=512", "preference.beta=0.1")
	if docs := new(Text).Documents(pairs); docs.Length != spec.SequenceLength/2 || docs.Preference != 0.1 {
		t.Errorf("without a text answers are %+v, want half a window each", docs)
	}
	a, b := length(short), length(long)
	n, m := float64(short.Len()), 0.25*float64(long.Len())
	if got, want := length(mixed), (n*float64(a)+m*float64(b))/(n+m); a >= b || math.Abs(float64(got)-want) > 0.5 {
		t.Errorf("documents of %d tokens, of %d and %d alone, want %v", got, a, b, want)
	}
	for k, want := range []string{dir + "/short.jsonl", dir + "/long.jsonl", dir + "/held.txt"} {
		if got := mixed.nameOf(mixed.all()[k].Tokens); got != want {
			t.Errorf("tokens are of %s, want %s", got, want)
		}
	}
	if got := short.nameOf(short.Sources[0].Tokens); got != "the corpus" {
		t.Errorf("tokens are of %s", got)
	}
}

// TestHeldOut: without a validation corpus, each source holds out its end, which is not trained on; with one, no source holds out anything.
func TestHeldOut(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	file := runConfig(t, t.TempDir())
	for _, c := range []struct {
		validation string
		held       int
	}{{"validation=null", 2}, {"validation=../data/*_test.go", 1}} {
		spec := settled(t, file, "data=[../model/*.go, {files: ../alloc/*.go, times: 2}]", c.validation)
		s, err := Prepare(t.Context(), spec, func(string, int64, int64) {})
		check(t, err)
		trained := map[string]int64{} // up to where
		for i := range s.Train.Count() {
			r := s.Train.Stretches(i)[0]
			trained[r.Tokens.Path()] = max(trained[r.Tokens.Path()], r.End)
		}
		held, sources := map[string]bool{}, len(s.Sources)
		for i := range s.Held.Count() {
			r := s.Held.Stretches(i)[0]
			held[r.Tokens.Path()] = true
			if r.First < trained[r.Tokens.Path()]-1 { // which is a target there and given here
				t.Errorf("%s: window %v is held out and trained on", c.validation, r.Range)
			}
		}
		if len(held) != c.held || len(s.HeldText) != c.held || len(trained) != sources || sources != 2 {
			t.Errorf("%s: trained on %v, held out of %v", c.validation, trained, held)
		}
		if s.Validation != nil {
			for _, source := range s.Sources {
				if left := source.Tokens.Len() - trained[source.Tokens.Path()]; left > int64(spec.SequenceLength) {
					t.Errorf("%d tokens of %s are not trained on", left, source.Name)
				}
			}
		}
		s.Close()
	}
}
