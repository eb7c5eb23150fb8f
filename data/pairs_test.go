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

// TestPreferences: every pair that fits is in one window, one document after the other, with the tokens of its
// strings, of which only the answers and the ends of documents are targets; after the pairs there is padding;
// the last pairs are held out.
func TestPreferences(t *testing.T) {
	const sequence = 60
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
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
	var want [][2][]int32 // the documents of each pair, in which what is given is marked
	var lines strings.Builder
	tooLong := int64(0)
	for n := range 200 {
		prompt, answers := words(1+r.IntN(6)), []string{words(r.IntN(14)), words(r.IntN(14))}
		if n == 0 { // as many tokens as a window
			prompt, answers = strings.Repeat(" gold", 10), []string{strings.Repeat(" gold", 20), strings.Repeat(" gold", 19)}
		}
		line, err := json.Marshal(map[string]string{"prompt": prompt, "chosen": answers[0], "rejected": answers[1]})
		must(t, err)
		lines.Write(append(line, '\n'))
		var pair [2][]int32
		for k, answer := range answers {
			ids := e.Encode(nil, []byte(prompt))
			for i := range ids {
				pair[k] = append(pair[k], Mark(ids[i]))
			}
			pair[k] = append(append(pair[k], e.Continue(slices.Clone(ids), []byte(answer))[len(ids):]...), end)
		}
		if len(pair[0])+len(pair[1]) > sequence+1 {
			tooLong++
			continue
		}
		want = append(want, pair)
	}
	c, err := OpenCorpus(write(t, map[string]string{"a.jsonl": lines.String()}) + "/*")
	must(t, err)
	file, err := Tokenize(context.Background(), c, tokenizer, t.TempDir(), Options{})
	must(t, err)
	defer file.Close()
	if text := file.Stats().String(); !strings.Contains(text, "200 pairs of a chosen and a rejected answer") {
		t.Error(text)
	}
	first, last, err := file.SplitPairs(0.2, sequence)
	must(t, err)
	held := len(want) / 5
	parts, left := []Part{}, int64(0)
	for k, part := range []Range{first, last} {
		wanted := want[:len(want)-held]
		if k == 1 {
			wanted = want[len(want)-held:]
		}
		w, p, err := file.Preferences(part, sequence)
		must(t, err)
		parts, left = append(parts, Part{Windows: w, Times: 1}), left+p.TooLong
		got, taken, row := map[int64][2][]int32{}, int64(0), make([]int32, sequence+1)
		for i := range w.Count() {
			w.Copy(row, i)
			begins, documents := w.Begins(nil, i), w.Stretches(i)
			if len(begins) != len(documents) || int64(len(begins)) != 2*(w.Pairs(i+1)-w.Pairs(i)) {
				t.Fatalf("window %d has documents at %v: %v", i, begins, documents)
			}
			for k := 0; k < len(begins); k += 2 {
				d := documents[k : k+2]
				rest := row[begins[k]:]
				got[d[0].First] = [2][]int32{slices.Clone(rest[:d[0].Len()]), slices.Clone(rest[d[0].Len():][:d[1].Len()])}
				if d[0].End != d[1].First || begins[k]+int(d[0].Len()) != begins[k+1] {
					t.Fatalf("window %d: %v are a pair", i, d)
				}
				taken += d[1].End - d[0].First
			}
		}
		if padding := w.Count()*(sequence+1) - taken; p.Tokens != taken || p.Padding != padding {
			t.Errorf("%d tokens and %d of padding, said %+v", taken, padding, p)
		}
		var list [][2][]int32
		for _, at := range slices.Sorted(maps.Keys(got)) {
			list = append(list, got[at])
		}
		if !slices.EqualFunc(list, wanted, func(a, b [2][]int32) bool { return slices.Equal(a[0], b[0]) && slices.Equal(a[1], b[1]) }) {
			t.Fatalf("%d pairs are\n%v, want %d\n%v", len(list), list, len(wanted), wanted)
		}
	}
	if n := len(want[0][0]) + len(want[0][1]); n != sequence+1 {
		t.Fatalf("the first pair has %d tokens", n)
	}
	if left != tooLong || tooLong == 0 {
		t.Errorf("%d pairs are too long, want %d", left, tooLong)
	}
	// In a mixture, pairs are counted consecutively.
	mixed, train := Mix(parts...), parts[0]
	for i := range mixed.Count() + 1 {
		n := train.Pairs(min(i, train.Count())) + parts[1].Pairs(max(i-train.Count(), 0))
		if got := mixed.Pairs(i); got != n {
			t.Fatalf("%d pairs before window %d, want %d", got, i, n)
		}
	}
	if n := mixed.Pairs(mixed.Count()); n != int64(len(want)) {
		t.Errorf("%d pairs in all, want %d", n, len(want))
	}
	all, _, err := file.Preferences(file.All(), sequence)
	must(t, err)
	if got, want := file.PairLength(sequence), lengthOf(visible(all, end)/all.Count(), sequence); got != want {
		t.Errorf("documents cost as those of %d tokens, counted %d", got, want)
	}
	for heldOut, least := range map[float64]int{0: 1, 1: len(want) - 1} { // at least one on either side
		_, last, err := file.SplitPairs(heldOut, sequence)
		must(t, err)
		if w, _, err := file.Preferences(last, sequence); err != nil || w.Pairs(w.Count()) != int64(least) {
			t.Errorf("%v held out: %v", heldOut, err)
		}
	}
	if _, _, err := file.Preferences(file.All(), 3); err == nil || !strings.Contains(err.Error(), "hint: use a longer sequence_length") {
		t.Errorf("windows of 4 tokens: %v", err)
	}
}

// TestPairTokens: the first token of each document is given, whatever it was before; of a document that is one token, of ends of text inside
// documents and of half a pair it is said that they are not what is wanted.
func TestPairTokens(t *testing.T) {
	const end = int32(7)
	of := func(pairs int64, ids ...int32) *Tokens {
		file := inMemory(ids, end)
		file.stats.JSONL = FormatStats{Documents: 2 * pairs, Pairs: pairs}
		return file
	}
	file := of(2, 10, 11, end, 12, 13, 14, end, Mark(15), 16, end, 17, Mark(end))
	w, p, err := file.Preferences(file.All(), 13)
	must(t, err)
	row := make([]int32, 14)
	w.Copy(row, 0)
	given := Mark(end)
	if want := []int32{Mark(10), 11, end, Mark(12), 13, 14, end, Mark(15), 16, end, Mark(17), given, given, given}; w.Count() != 1 || !slices.Equal(row, want) || p != (Packing{Tokens: 12, Padding: 2}) {
		t.Errorf("%v, %+v; want %v", row, p, want)
	}
	for want, file := range map[string]*Tokens{
		"token 5, an end-of-text token, is the only token of a document of a pair": of(2, 10, end, 11, 12, end, end, 13, end),
		"token 2, an end-of-text token, is the only token of a document of a pair": of(1, 10, end, end),
		"(2 found, the text has 1)": of(1, 10, end, 11, end, 12, end, 13, end),
		"(1 found, the text has 1)": of(1, 10, end, 11, end, 12, end),
	} {
		if _, _, err := file.Preferences(file.All(), 13); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestPairsAlike: pairs are counted whose answers are the same tokens, whatever made them so, and no others.
func TestPairsAlike(t *testing.T) {
	const asked = `{"role": "user", "content": "gold?"}`
	for _, c := range []struct {
		name, folder, lines string
		want                int64
	}{
		{"the same strings", "chatml", `{"prompt": "a", "chosen": "b", "rejected": "b"}`, 1},
		{"one of two", "chatml", `{"prompt": "a", "chosen": "b", "rejected": "c"}` + "\n" + `{"prompt": "a", "chosen": "b", "rejected": "b"}`, 1},
		{"the same, escaped", "chatml", `{"prompt": "a", "chosen": "\u0062", "rejected": "b"}`, 1},
		{"a template that writes no name", "chatml", `{"prompt": [` + asked + `], "chosen": [{"role": "assistant", "content": "b", "name": "x"}], "rejected": [{"role": "assistant", "content": "b", "name": "y"}]}`, 1},
		{"a template that trims", "llama2", `{"prompt": [` + asked + `], "chosen": [{"role": "assistant", "content": " b"}], "rejected": [{"role": "assistant", "content": "b "}]}`, 1},
		{"one begins with the other", "chatml", `{"prompt": "a", "chosen": "b b", "rejected": "b"}`, 0},
		{"another prompt", "chatml", `{"chosen": [` + asked + `, {"role": "assistant", "content": "b"}], "rejected": [{"role": "user", "content": "iron?"}, {"role": "assistant", "content": "b"}]}`, 0},
	} {
		_, tokens := tokensOf(t, c.folder, c.lines+"\n", Options{})
		if _, p, err := tokens.Preferences(tokens.All(), 100); err != nil || p.Alike != c.want {
			t.Errorf("%s: %d alike, want %d (%v)", c.name, p.Alike, c.want, err)
		}
	}
}

// TestOnePair: a pair alone cannot be divided.
func TestOnePair(t *testing.T) {
	c, err := OpenCorpus(write(t, map[string]string{"a.jsonl": `{"prompt": "a", "chosen": "b", "rejected": "c"}`}) + "/*")
	must(t, err)
	file, err := Tokenize(context.Background(), c, bpe.GPT2(), t.TempDir(), Options{})
	must(t, err)
	defer file.Close()
	if _, _, err := file.SplitPairs(0.5, 10); err == nil || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("one pair alone: %v", err)
	}
}

// TestPreferredConversations: in all three forms of lists of messages only the last answer is learnt, after the same tokens.
func TestPreferredConversations(t *testing.T) {
	const asked, before = `{"role": "user", "content": "gold?"}`, `{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, `
	said := func(text string) string { return fmt.Sprintf(`{"role": "assistant", "content": %q}`, text) }
	pair := func(format, prompt string) string {
		return strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(format, "PROMPT", prompt), "YES", said("yellow")), "NO", said("grey")) + "\n"
	}
	for _, folder := range []string{"chatml", "llama2"} {
		var first []int32
		for _, line := range []string{
			pair(`{"prompt": [PROMPT], "chosen": [YES], "rejected": [NO]}`, before+asked),
			pair(`{"chosen": [PROMPT, YES], "rejected": [PROMPT, NO], "score": 3}`, before+asked),
			pair(`{"prompt": "gold?", "chosen": [ PROMPT, YES ], "rejected": [PROMPT, NO]}`, before+asked),
		} {
			ids, tokens := tokensOf(t, folder, line, Options{})
			if first == nil {
				first = ids
			}
			if !slices.Equal(ids, first) || tokens.Stats().Pairs() != 1 || tokens.Stats().Conversations() != 2 {
				t.Errorf("%s: %s %v: %v, want %v", folder, line, tokens.Stats(), ids, first)
			}
		}
		tokenizer, _ := opened(t, folder)
		_, tokens := tokensOf(t, folder, strings.Repeat(pair(`{"prompt": "gold?", "chosen": [YES], "rejected": [NO]}`, ""), 2), Options{})
		all, _, err := tokens.Preferences(tokens.All(), 100)
		must(t, err)
		row := make([]int32, 101)
		all.Copy(row, 0)
		var learnt []int32
		for _, id := range row {
			if !Given(id) {
				learnt = append(learnt, ID(id))
			}
		}
		text, err := tokenizer.Decode(learnt)
		must(t, err)
		if said := strings.NewReplacer("<|im_end|>", "", "</s>", "", " ", "", "\n", "").Replace(string(text)); said != "yellowgrey" {
			t.Errorf("%s: %q is learnt", folder, text)
		}
	}
}

// TestPairLines: what is not a pair is reported.
func TestPairLines(t *testing.T) {
	for line, want := range map[string]string{
		`{"prompt": "a", "chosen": "b", "rejected": ""}`:                                                        "",
		`{"prompt": "a", "chosen": "b", "rejected": "c", "messages": [1], "completion": "d"}`:                   "",
		`{"prompt": "a", "chosen": "b"}`:                                                                        "not all given",
		`{"prompt": "", "chosen": "b", "rejected": "c"}`:                                                        "prompt of a pair is empty",
		`{"chosen": "b", "rejected": "c"}`:                                                                      "not all given",
		`{"prompt": ["a"], "chosen": "b", "rejected": "c"}`:                                                     "not all given",
		`{"prompt": "a", "chosen": 1, "rejected": {}}`:                                                          "not all given",
		`{"prompt": "a", "chosen": "b", "rejected": [{"role": "assistant", "content": "c"}]}`:                   "is a string and the other a list",
		`{"chosen": [], "rejected": []}`:                                                                        "does not end with an assistant message",
		`{"prompt": [], "chosen": [], "rejected": []}`:                                                          "does not end with an assistant message",
		`{"prompt": {"a": 1}, "chosen": [{"role": "assistant", "content": "b"}], "rejected": []}`:               "neither a string nor a list",
		`{"chosen": [{"role": "user", "content": "b"}], "rejected": [{"role": "assistant", "content": "b"}]}`:   "does not end with an assistant message",
		`{"chosen": [{"role": "wizard", "content": "b"}], "rejected": [{"role": "assistant", "content": "b"}]}`: "wizard",
		`{"prompt": [1], "chosen": [2], "rejected": [3]}`:                                                       "not an object",
	} {
		doc, err := appendText(nil, []byte(line), usualField, aPair)
		switch {
		case want == "" && (err != nil || doc.pair == nil):
			t.Errorf("%s: %v", line, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint: ")):
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	// From a line with a pair and another document, what is wanted is read; null is nothing.
	for line, other := range map[string]bool{
		`{"prompt": "a", "completion": "b", "chosen": "b", "rejected": "c"}`:                                                                          true,
		`{"messages": [{"role": "user", "content": "a"}], "prompt": "a", "chosen": "b", "rejected": "c"}`:                                             true,
		`{"instruction": "a", "output": "b", "chosen": [{"role": "assistant", "content": "c"}], "rejected": [{"role": "assistant", "content": "d"}]}`: true,
		`{"prompt": "a", "chosen": "b", "rejected": "c"}`:                                                                                             false,
	} {
		for _, want := range []wanted{anything, aPair} {
			doc, err := appendText(nil, []byte(line), usualField, want)
			must(t, err)
			if is := doc.pair != nil; is != (want == aPair || !other) {
				t.Errorf("%s, wanted %v: a pair is read: %v", line, want, is)
			}
		}
	}
	if doc, err := appendText(nil, []byte(`{"prompt": "a", "completion": "b", "chosen": null, "rejected": null}`), usualField, aPair); err != nil || doc.pair != nil {
		t.Errorf("%+v %v", doc, err)
	}
	tokenizer := bpe.GPT2()
	for text, want := range map[string]string{
		`{"text": "x"}` + "\n" + `{"prompt": "a", "chosen": "b", "rejected": "c"}`: "2 of 3 documents belong to pairs",
		`{"text": "x"}`: "0 of 1 documents belong to pairs",
	} {
		c, err := OpenCorpus(write(t, map[string]string{"a.jsonl": text}) + "/*")
		must(t, err)
		tokens, err := Tokenize(context.Background(), c, tokenizer, t.TempDir(), Options{})
		must(t, err)
		defer tokens.Close()
		if _, _, err := tokens.Preferences(tokens.All(), 10); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// FuzzPair: no line makes a pair fail other than with an error, and its strings are those that encoding/json reads.
func FuzzPair(f *testing.F) {
	for _, line := range []string{
		`{"prompt":"a","chosen":"b","rejected":"c"}`, `{"prompt":[],"chosen":[],"rejected":[]}`, `{"prompt":[{"role":"user","content":"a"}],"chosen":[{"role":"assistant","content":"b"}],"rejected":[{"role":"assistant","content":"c"}]}`,
		`{"prompt":"a","chosen":[{"role":"assistant","content":"b"}],"rejected":[{"role":"assistant","content":""}]}`, `{"prompt":[ ],"chosen":[[]],"rejected":null}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		doc, err := appendText(nil, line, usualField, aPair)
		if err != nil || doc.pair == nil {
			return
		}
		var object map[string]any
		must(t, json.Unmarshal(line, &object))
		for k, key := range []string{"chosen", "rejected"} {
			side := doc.pair[k]
			prompt, _ := object["prompt"].(string)
			answer, isText := object[key].(string)
			switch {
			case isText != (side.turns == nil):
				t.Fatalf("%q: %s is a string: %v", line, key, isText)
			case isText && (string(replaceInvalid(side.dst)) != prompt+answer || string(replaceInvalid(side.dst[:side.given])) != prompt || side.given == 0):
				t.Fatalf("%q: %q with a prompt of %d bytes", line, side.dst, side.given)
			case !isText && side.turns.Len() == 0:
				t.Fatalf("%q: no turn", line)
			}
		}
	})
}
