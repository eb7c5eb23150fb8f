package data

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestExamples: every example that fits is in one window, with the tokens of its strings and its verdict; in the mismatched window
// at the same place is its prompt with the answer of the nearest example before it with another prompt, cut if it does not
// fit; the last examples are held out.
func TestExamples(t *testing.T) {
	const sequence = 40
	r := rand.New(rand.NewPCG(testkit.Seed(t), 7))
	words := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString([]string{"fire ", "stone\n", "salt, ", "é ", "mercury"}[r.IntN(5)])
		}
		return b.String()
	}
	tokenizer := bpe.GPT2()
	e := tokenizer.NewEncoder()
	end, _ := tokenizer.EndOfText()
	type wants struct {
		prompt, answer []int32
		good           bool
	}
	var want []wants
	var lines strings.Builder
	add := func(prompt, answer string, good bool) bool {
		ids := e.Encode(nil, []byte(prompt))
		x := wants{answer: append(e.Continue(slices.Clone(ids), []byte(answer))[len(ids):], end), good: good}
		for _, id := range ids {
			x.prompt = append(x.prompt, Mark(id))
		}
		if len(x.prompt)+len(x.answer) > sequence+1 {
			return false
		}
		want = append(want, x)
		return true
	}
	tooLong := int64(0)
	prompt := ""
	for n := range 150 {
		if n == 0 || r.IntN(3) > 0 { // else several answers to one prompt follow each other
			prompt = fmt.Sprint(n%40, words(1+r.IntN(12)))
		}
		row := map[string]any{"prompt": prompt, "completion": words(r.IntN(12)), "label": r.IntN(2) == 1}
		if n%10 == 9 { // a pair is two examples
			row = map[string]any{"prompt": prompt, "chosen": words(3), "rejected": words(2)}
			for k, answer := range []any{row["chosen"], row["rejected"]} {
				if !add(prompt, answer.(string), k == 0) {
					tooLong++
				}
			}
		} else if !add(prompt, row["completion"].(string), row["label"].(bool)) {
			tooLong++
		}
		line, err := json.Marshal(row)
		must(t, err)
		lines.Write(append(line, '\n'))
	}
	c, err := OpenCorpus(write(t, map[string]string{"a.jsonl": lines.String()}) + "/*")
	must(t, err)
	file, err := Tokenize(context.Background(), c, tokenizer, t.TempDir(), Options{Verdicts: true})
	must(t, err)
	defer file.Close()
	if n := file.Stats().Tagged(); n != int64(len(want))+tooLong || n != file.Stats().Documents() || file.Stats().Pairs() != 0 || int(file.Largest()) >= tokenizer.VocabularySize() {
		t.Fatalf("%v: %d verdicts", file.Stats(), n)
	}
	first, last, err := file.SplitExamples(0.2, sequence)
	must(t, err)
	cut := len(want) - len(want)/5
	left := int64(0)
	for k, part := range []Range{first, last} {
		wanted := [][]wants{want[:cut], want[cut:]}[k]
		w, p, err := file.Examples(part, sequence, true)
		must(t, err)
		left += p.TooLong
		others := w.Mismatched()
		if w.Count() != others.Count() || w.Documents(w.Count()) != int64(len(wanted)) || others.Documents(w.Count()) != int64(len(wanted)) {
			t.Fatalf("%d documents in %d windows and %d in %d, want %d", w.Documents(w.Count()), w.Count(), others.Documents(w.Count()), others.Count(), len(wanted))
		}
		row, other := make([]int32, sequence+1), make([]int32, sequence+1)
		type found struct {
			own, mismatched []int32
			good            bool
		}
		got := map[int64]found{}
		for i := range w.Count() {
			w.Copy(row, i)
			others.Copy(other, i)
			begins, twins, good := w.Begins(nil, i), others.Begins(nil, i), w.Good(nil, i)
			if len(begins) != len(twins) || len(begins) != len(good) || int64(len(begins)) != w.Documents(i+1)-w.Documents(i) {
				t.Fatalf("window %d: documents at %v and at %v", i, begins, twins)
			}
			for k, d := range w.Stretches(i) {
				got[d.First] = found{slices.Clone(row[begins[k]:][:d.Len()]), slices.Clone(other[twins[k]:]), good[k]}
			}
		}
		for n, at := range slices.Sorted(maps.Keys(got)) {
			x, m := wanted[n], n
			for m = (n + len(wanted) - 1) % len(wanted); slices.Equal(wanted[m].prompt, x.prompt); {
				m = (m + len(wanted) - 1) % len(wanted)
			}
			twin := slices.Concat(x.prompt, wanted[m].answer)
			if len(twin) > sequence+1 {
				twin = append(twin[:sequence:sequence], Mark(end))
			}
			f := got[at]
			if !slices.Equal(f.own, slices.Concat(x.prompt, x.answer)) || f.good != x.good || !slices.Equal(f.mismatched[:len(twin)], twin) {
				t.Fatalf("example %d is %v, want %v;\nmismatched %v, want %v", n, f.own, x, f.mismatched, twin)
			}
		}
		good, bad := w.Verdicts()
		if n := len(slices.DeleteFunc(slices.Clone(wanted), func(x wants) bool { return !x.good })); int(good) != n || int(good+bad) != len(wanted) {
			t.Errorf("%d good and %d bad, want %d of %d", good, bad, n, len(wanted))
		}
	}
	if left != tooLong || tooLong == 0 {
		t.Errorf("%d are too long, want %d", left, tooLong)
	}
	if _, _, err := file.Examples(file.All(), 2, true); err == nil || !strings.Contains(err.Error(), "hint: use a longer sequence_length") {
		t.Errorf("windows of 3 tokens: %v", err)
	}
}

// TestVerdicts: of rows that are no answers with a verdict it is said what is missing, and verdicts are learnt from only where they are asked for.
func TestVerdicts(t *testing.T) {
	for line, want := range map[string]string{
		`{"text": "a", "label": true}`:                                           "no answer that could be good or bad",
		`{"messages": [{"role": "user", "content": "a"}], "label": true}`:        "no answer that could be good or bad",
		`{"prompt": "a", "completion": "b"}`:                                     `"label" is missing`,
		`{"prompt": "a", "completion": "b", "label": "good"}`:                    `"label" is "good", neither true nor false`,
		`{"prompt": "a", "completion": "b", "label": 1}`:                         `"label" is 1, neither true nor false`,
		`{"prompt": "a", "completion": "b", "label": null}`:                      `"label" is missing`,
		`{"prompt": "a", "completion": "b", "chosen": "c"}`:                      "not all given",
		`{"prompt": "a", "completion": "b", "label": true, "images": ["a.png"]}`: "images",
	} {
		if _, err := appendText(nil, []byte(line), usualField, aVerdict); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
	const line = `{"prompt": "a", "completion": "b", "label": false}`
	if _, err := appendText(nil, []byte(line), usualField, anything); err == nil || !strings.Contains(err.Error(), "hint: set preference: {loss: kto") {
		t.Errorf("not asked for: %v", err)
	}
	if doc, err := appendText(nil, []byte(line), usualField, aVerdict); err != nil || len(doc.tags) != 1 || doc.tags[0] != 0 || string(doc.dst) != "ab" || doc.given != 1 {
		t.Errorf("%+v, %v", doc, err)
	}
}

// TestJudgedConversations: of a prompt and a completion that are lists of messages, the completion is the answer.
func TestJudgedConversations(t *testing.T) {
	lines := `{"prompt": [{"role": "user", "content": "gold?"}], "completion": [{"role": "assistant", "content": "yellow"}], "label": true}
{"prompt": [{"role": "user", "content": "iron?"}], "completion": [{"role": "assistant", "content": "pink"}], "label": false}
`
	tokenizer, _ := opened(t, "chatml")
	_, tokens := tokensOf(t, "chatml", lines, Options{Verdicts: true})
	all, _, err := tokens.Examples(tokens.All(), 60, true)
	must(t, err)
	row := make([]int32, 61)
	var text []string
	for _, w := range []Windows{all, all.Mismatched()} {
		for i := range w.Count() {
			var ids []int32
			for w.Copy(row, i); len(row) > 0; row = row[1:] {
				if ID(row[0]) != tokens.EndOfText() {
					ids = append(ids, ID(row[0]))
				}
			}
			row = make([]int32, 61)
			part, err := tokenizer.Decode(ids)
			must(t, err)
			text = append(text, string(part))
		}
	}
	said := strings.Join(text, "|")
	if strings.Count(said, "gold?") != 2 || strings.Index(said, "yellow") < strings.Index(said, "gold?") || !slices.Equal(all.Good(nil, 0), []bool{true, false}) {
		t.Errorf("%q %v", said, all.Good(nil, 0))
	}
}
