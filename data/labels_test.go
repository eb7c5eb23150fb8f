package data

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestLabelled: every text is in one window, with the tokens of its string, cut to what fits; its label is the one target of its document, at
// its last token, whether rows give its name or its number; the last texts are held out.
func TestLabelled(t *testing.T) {
	const sequence = 20
	classes := []string{"red", "green", "0"}
	r := rand.New(rand.NewPCG(testkit.Seed(t), 8))
	tokenizer := bpe.GPT2()
	e := tokenizer.NewEncoder()
	end, _ := tokenizer.EndOfText()
	var lines strings.Builder
	want, cut := map[string]int{}, int64(0) // labels by the text's tokens
	const texts = 120
	for n := range texts {
		text := fmt.Sprint(n, strings.Repeat(" stone", 1+r.IntN(24)))
		label := r.IntN(3)
		row := map[string]any{"text": text, "label": []any{classes[label], label}[r.IntN(2)]}
		switch r.IntN(4) {
		case 0:
			row["prompt"] = text
			delete(row, "text")
		case 1:
			row["prompt"], row["completion"] = text[:len(text)-6], " stone"
			delete(row, "text")
		}
		ids := e.Encode(nil, []byte(text))
		if len(ids) > sequence {
			ids, cut = ids[:sequence], cut+1
		}
		want[fmt.Sprint(ids)] = label
		line, err := json.Marshal(row)
		must(t, err)
		lines.Write(append(line, '\n'))
	}
	c, err := OpenCorpus(write(t, map[string]string{"a.jsonl": lines.String()}) + "/*")
	must(t, err)
	file, err := Tokenize(context.Background(), c, tokenizer, t.TempDir(), Options{Labels: classes})
	must(t, err)
	defer file.Close()
	first, last, err := file.SplitLabelled(0.25, sequence)
	must(t, err)
	counts := make([]int64, len(classes))
	for part, ranged := range []Range{first, last} {
		w, p, err := file.Labelled(ranged, sequence)
		must(t, err)
		cut -= p.TooLong
		n, batch, window := 0, NewBatch(sequence), make([]int32, sequence+1)
		for i := range w.Count() {
			w.Copy(window, i)
			learnt, begin := batch.Fill(0, window, end), 0
			for at, target := range batch.Targets {
				if target < 0 {
					continue
				}
				text := batch.Tokens[begin : at+1]
				if label, there := want[fmt.Sprint(text)]; !there || label != int(target) || slices.ContainsFunc(batch.Starts[begin:at+1], func(s int32) bool { return int(s) != begin }) {
					t.Fatalf("a document %v with label %d and starts %v is none of the texts", text, target, batch.Starts)
				}
				delete(want, fmt.Sprint(text))
				if begin = at + 2; at+1 < sequence && batch.Tokens[at+1] != end {
					t.Errorf("a text is followed by %d", batch.Tokens[at+1])
				}
				learnt--
				n++
			}
			if learnt != 0 {
				t.Errorf("%d targets more are counted than there are", learnt)
			}
		}
		for k, x := range w.LabelCounts(len(classes)) {
			counts[k] += x
		}
		if held := texts / 4; n != []int{texts - held, held}[part] {
			t.Errorf("part %d has %d texts", part, n)
		}
	}
	if len(want) > 0 || cut != 0 || counts[0]+counts[1]+counts[2] != texts {
		t.Errorf("%d texts are in no window, %d more were cut than said; labels %v", len(want), cut, counts)
	}
}

// TestLabelErrors: rows whose label is missing, unknown or out of range are refused, and what to write is said; so is text without rows.
func TestLabelErrors(t *testing.T) {
	for _, c := range []struct{ row, want string }{
		{`{"text": "a"}`, `"label" is missing; hint: write`},
		{`{"text": "a", "label": null}`, `"label" is missing; hint: write`},
		{`{"text": "a", "label": 2}`, `"label" is 2, but there are 2 labels, 0 to 1; hint: `},
		{`{"text": "a", "label": -1}`, `"label" is -1, but there are 2 labels`},
		{`{"text": "a", "label": "gren"}`, `which is none of red, green; hint: did you mean green? Or add it to labels`},
		{`{"text": "a", "label": true}`, `neither a whole number nor a name; hint: `},
		{`{"text": "a", "label": 0.5}`, `neither a whole number nor a name; hint: `},
		{`{"prompt": "a", "chosen": "b", "rejected": "c", "label": 1}`, `pair of answers`},
		{`{"label": 1}`, `"text"`},
	} {
		_, err := appendLabelled([]byte(c.row), []string{"red", "green"})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.row, err, c.want)
		}
	}
	corpus, err := OpenCorpus(write(t, map[string]string{"a.txt": "plain"}) + "/*")
	must(t, err)
	file, err := Tokenize(context.Background(), corpus, bpe.GPT2(), t.TempDir(), Options{Labels: []string{"red", "green"}})
	must(t, err)
	defer file.Close()
	if _, _, err := file.Labelled(file.All(), 8); err == nil || !strings.Contains(err.Error(), "0 of 1 documents have a label") {
		t.Error(err)
	}
}

// appendLabelled reads a row as files are read.
func appendLabelled(row []byte, names []string) (label int, err error) {
	doc, err := appendText(nil, row, usualField, aLabel)
	if err != nil {
		return 0, err
	}
	tags, err := (&reader{labels: names}).tagsOf(doc.label)
	if err != nil {
		return 0, err
	}
	return int(tags[0]), nil
}

// TestValues: every text is in one window, with the bits of its value at its last token, and nothing else is learnt.
func TestValues(t *testing.T) {
	const sequence = 24
	r := testkit.Rand(t)
	tokenizer := bpe.GPT2()
	e := tokenizer.NewEncoder()
	end, _ := tokenizer.EndOfText()
	want := map[string]float32{}
	var lines strings.Builder
	for n := range testkit.Count(60, 200, 1000) {
		text := fmt.Sprintf("stone %d%s", n, strings.Repeat(" and another", r.IntN(20)))
		ids := e.Encode(nil, []byte(text))
		v := math.Float32frombits(r.Uint32())
		for v != v || math.Abs(float64(v)) > math.MaxFloat32 {
			v = math.Float32frombits(r.Uint32())
		}
		want[fmt.Sprint(ids[:min(len(ids), sequence)])] = v
		line, err := json.Marshal(map[string]any{"text": text, "label": v})
		must(t, err)
		lines.WriteString(string(line) + "\n")
	}
	c, err := OpenCorpus(write(t, map[string]string{"a.jsonl": lines.String()}) + "/*")
	must(t, err)
	file, err := Tokenize(context.Background(), c, tokenizer, t.TempDir(), Options{Labels: []string{"weight"}})
	must(t, err)
	defer file.Close()
	first, last, err := file.SplitLabelled(0.25, sequence)
	must(t, err)
	for _, ranged := range []Range{first, last} {
		w, _, err := file.Labelled(ranged, sequence)
		must(t, err)
		w = w.Scored()
		batch, window, values := NewBatch(sequence), make([]int32, sequence+1), make([]float32, sequence)
		for i := range w.Count() {
			w.Copy(window, i)
			w.Values(values, i)
			batch.Fill(0, window, end)
			for at, target := range batch.Targets {
				if target < 0 {
					if values[at] != 0 {
						t.Errorf("the value %v is at a token that is not learnt", values[at])
					}
					continue
				}
				text := fmt.Sprint(batch.Tokens[batch.Starts[at] : at+1])
				if v, there := want[text]; !there || target != 0 || math.Float32bits(v) != math.Float32bits(values[at]) {
					t.Fatalf("a document %s has the value %v and the target %d; its row says %v (%v)", text, values[at], target, v, there)
				}
				delete(want, text)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("%d texts are in no window", len(want))
	}
}

// TestValueErrors: rows whose value is no finite number are refused, and what to write is said.
func TestValueErrors(t *testing.T) {
	for _, c := range []struct{ row, want string }{
		{`{"text": "a"}`, `"label" is missing; hint: write`},
		{`{"text": "a", "label": null}`, `with the number that it has as weight`},
		{`{"text": "a", "label": "heavy"}`, `"label" is "heavy", but with one label (weight) each row has a number; hint: `},
		{`{"text": "a", "label": "2.5"}`, `without quotes`},
		{`{"text": "a", "label": true}`, `each row has a number; hint: `},
		{`{"text": "a", "label": [1]}`, `each row has a number; hint: `},
		{`{"text": "a", "label": 1e39}`, `too large for a number of 32 bits; hint: `},
		{`{"text": "a", "label": -1e400}`, `hint: `},
		{`{"text": "a", "label": NaN}`, ``},
	} {
		_, err := appendLabelled([]byte(c.row), []string{"weight"})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.row, err, c.want)
		}
	}
}
