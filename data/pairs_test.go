package data

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/data/bpe"
)

// TestPreferences: pairs of strings are windows with their tokens, padding behind them, and only the answers and the ends of their
// documents as targets; those that are too long are left out; what is held out is the end of the rest.
func TestPreferences(t *testing.T) {
	const sequence = 40
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
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
	type window struct{ tokens, targets, starts []int32 }
	var want []window
	var lines strings.Builder
	tooLong := int64(0)
	for range 200 {
		prompt, answers := words(1+r.IntN(6)), []string{words(r.IntN(9)), words(r.IntN(9))}
		line, err := json.Marshal(map[string]string{"prompt": prompt, "chosen": answers[0], "rejected": answers[1]})
		must(t, err)
		lines.Write(append(line, '\n'))
		var w window
		for _, answer := range answers {
			first := len(w.tokens)
			given := len(e.Encode(nil, []byte(prompt)))
			ids := append(e.Continue(e.Encode(nil, []byte(prompt)), []byte(answer)), end)
			for i, id := range ids {
				w.tokens, w.starts = append(w.tokens, id), append(w.starts, int32(first))
				if len(w.tokens) > 1 {
					if i < given {
						id = -1
					}
					w.targets = append(w.targets, id)
				}
			}
		}
		if len(w.tokens) > sequence+1 {
			tooLong++
			continue
		}
		for len(w.tokens) < sequence+1 {
			w.starts = append(w.starts, int32(len(w.tokens)))
			w.tokens, w.targets = append(w.tokens, end), append(w.targets, -1)
		}
		w.tokens, w.starts = w.tokens[:sequence], w.starts[:sequence]
		want = append(want, w)
	}
	c, err := OpenCorpus(write(t, map[string]string{"a.jsonl": lines.String()}) + "/*")
	must(t, err)
	file, err := Tokenize(context.Background(), c, tokenizer, t.TempDir(), Options{})
	must(t, err)
	defer file.Close()
	if text := file.Stats().String(); !strings.Contains(text, "200 pairs of a chosen and a rejected answer") {
		t.Error(text)
	}
	all, p, err := file.Preferences(sequence)
	must(t, err)
	train, held, err := all.HoldOut(0.2)
	must(t, err)
	if p.TooLong != tooLong || tooLong == 0 || train.Count()+held.Count() != int64(len(want)) || held.Count() != int64(len(want)/5) {
		t.Fatalf("%d and %d windows of %d, %d too long of %d", train.Count(), held.Count(), len(want), p.TooLong, tooLong)
	}
	padding := int64(0)
	for i, w := range want {
		list, k := train, int64(i)
		if k >= list.Count() {
			list, k = held, k-list.Count()
		}
		row := make([]int32, sequence+1)
		list.Copy(row, k)
		got := window{make([]int32, sequence), make([]int32, sequence), make([]int32, sequence)}
		Pairs(got.tokens, got.targets, row)
		Starts(got.starts, got.tokens, sequence, end)
		if !slices.Equal(got.tokens, w.tokens) || !slices.Equal(got.targets, w.targets) || !slices.Equal(got.starts, w.starts) {
			t.Fatalf("window %d:\n%v, want\n%v", i, got, w)
		}
		padding += int64(sequence) - min(sequence, list.Tokens(k).Len())
	}
	if p.Padding != padding {
		t.Errorf("padding %d, counted %d", p.Padding, padding)
	}
	few := (int64(len(want)) + tooLong) / 100
	for length, fits := range map[int64]bool{p.Enough: true, p.Enough - 1: false} {
		_, q, err := file.Preferences(int(length))
		if must(t, err); q.TooLong <= few != fits {
			t.Errorf("%d tokens are enough for 99 %% of the pairs, but of %d %d do not fit into %d", p.Enough, int64(len(want))+tooLong, q.TooLong, length)
		}
	}
	if n := file.PairLength(sequence); n < 2 || n > sequence {
		t.Errorf("documents cost as those of %d tokens", n)
	}
	one, _, err := held.HoldOut(1)
	if must(t, err); one.Count() != 1 {
		t.Errorf("%d windows to train on if all are held out", one.Count())
	}
	if _, _, err := one.HoldOut(0.5); err == nil || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("one pair alone: %v", err)
	}
	if _, _, err := file.Preferences(3); err == nil || !strings.Contains(err.Error(), "hint: a longer sequence_length") {
		t.Errorf("windows of 4 tokens: %v", err)
	}
}

// TestPreferredConversations: of the three forms of lists of messages the last answer alone is learnt, after the same tokens.
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
		all, _, err := tokens.Preferences(100)
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

// TestPairLines: what is no pair is told so.
func TestPairLines(t *testing.T) {
	for line, want := range map[string]string{
		`{"prompt": "a", "chosen": "b", "rejected": ""}`:                                                        "",
		`{"prompt": "a", "chosen": "b", "rejected": "c", "messages": [1], "completion": "d"}`:                   "",
		`{"prompt": "a", "chosen": "b"}`:                                                                        "not all there",
		`{"prompt": "", "chosen": "b", "rejected": "c"}`:                                                        "prompt of a pair is empty",
		`{"chosen": "b", "rejected": "c"}`:                                                                      "not all there",
		`{"prompt": ["a"], "chosen": "b", "rejected": "c"}`:                                                     "not all there",
		`{"prompt": "a", "chosen": 1, "rejected": {}}`:                                                          "not all there",
		`{"prompt": "a", "chosen": "b", "rejected": [{"role": "assistant", "content": "c"}]}`:                   "one is a string and one is a list",
		`{"chosen": [], "rejected": []}`:                                                                        "does not end with the assistant",
		`{"prompt": [], "chosen": [], "rejected": []}`:                                                          "does not end with the assistant",
		`{"prompt": {"a": 1}, "chosen": [{"role": "assistant", "content": "b"}], "rejected": []}`:               "neither a string nor a list",
		`{"chosen": [{"role": "user", "content": "b"}], "rejected": [{"role": "assistant", "content": "b"}]}`:   "does not end with the assistant",
		`{"chosen": [{"role": "wizard", "content": "b"}], "rejected": [{"role": "assistant", "content": "b"}]}`: "wizard",
		`{"prompt": [1], "chosen": [2], "rejected": [3]}`:                                                       "not an object",
	} {
		doc, err := appendText(nil, []byte(line), true)
		switch {
		case want == "" && (err != nil || doc.pair == nil):
			t.Errorf("%s: %v", line, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint: ")):
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	// Of a line with a pair and another document, what is wanted is read; null is nothing.
	for line, other := range map[string]bool{
		`{"prompt": "a", "completion": "b", "chosen": "b", "rejected": "c"}`:                                                                          true,
		`{"messages": [{"role": "user", "content": "a"}], "prompt": "a", "chosen": "b", "rejected": "c"}`:                                             true,
		`{"instruction": "a", "output": "b", "chosen": [{"role": "assistant", "content": "c"}], "rejected": [{"role": "assistant", "content": "d"}]}`: true,
		`{"prompt": "a", "chosen": "b", "rejected": "c"}`:                                                                                             false,
	} {
		for _, pairs := range []bool{false, true} {
			doc, err := appendText(nil, []byte(line), pairs)
			must(t, err)
			if is := doc.pair != nil; is != (pairs || !other) {
				t.Errorf("%s, pairs wanted %v: a pair is read: %v", line, pairs, is)
			}
		}
	}
	if doc, err := appendText(nil, []byte(`{"prompt": "a", "completion": "b", "chosen": null, "rejected": null}`), true); err != nil || doc.pair != nil {
		t.Errorf("%+v %v", doc, err)
	}
	tokenizer := bpe.GPT2()
	for text, want := range map[string]string{
		`{"text": "x"}` + "\n" + `{"prompt": "a", "chosen": "b", "rejected": "c"}`: "2 of 3 documents are of pairs",
		`{"text": "x"}`: "0 of 1 documents are of pairs",
	} {
		c, err := OpenCorpus(write(t, map[string]string{"a.jsonl": text}) + "/*")
		must(t, err)
		tokens, err := Tokenize(context.Background(), c, tokenizer, t.TempDir(), Options{})
		must(t, err)
		defer tokens.Close()
		if _, _, err := tokens.Preferences(10); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// FuzzPair: no line makes a pair fail otherwise than with an error, and of strings it has what encoding/json has.
func FuzzPair(f *testing.F) {
	for _, line := range []string{
		`{"prompt":"a","chosen":"b","rejected":"c"}`, `{"prompt":[],"chosen":[],"rejected":[]}`, `{"prompt":[{"role":"user","content":"a"}],"chosen":[{"role":"assistant","content":"b"}],"rejected":[{"role":"assistant","content":"c"}]}`,
		`{"prompt":"a","chosen":[{"role":"assistant","content":"b"}],"rejected":[{"role":"assistant","content":""}]}`, `{"prompt":[ ],"chosen":[[]],"rejected":null}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		doc, err := appendText(nil, line, true)
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
