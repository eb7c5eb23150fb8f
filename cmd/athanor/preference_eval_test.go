package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// ranked is what eval prints of pairs.
type ranked struct {
	Loss       float64
	Preference string
	folder.Rewards
	Device int64 `json:"device_bytes"`
}

// logProbabilities returns, of both answers of each pair in a file, the sum of the log-probabilities of their tokens and how many there are: by
// the logits of each answer behind its prompt, alone in a sequence.
func logProbabilities(t *testing.T, dir, file string) (sums, counts []float64) {
	t.Helper()
	f, err := folder.Open(dir)
	check(t, err)
	defer f.Close()
	tokenizer, err := f.Tokenizer()
	check(t, err)
	end, _ := tokenizer.EndOfText()
	text, err := os.ReadFile(file)
	check(t, err)
	for line := range strings.Lines(string(text)) {
		var pair struct{ Prompt, Chosen, Rejected string }
		check(t, json.Unmarshal([]byte(line), &pair))
		for _, answer := range []string{pair.Chosen, pair.Rejected} {
			prompt := tokenizer.Encode([]byte(pair.Prompt))
			row := append(append(append([]int32{}, prompt...), tokenizer.Encode([]byte(answer))...), end)
			e, err := folder.Evaluate(t.Context(), f, [][]int32{row}, true, false)
			check(t, err)
			sum, n := 0.0, 0.0
			for i := len(prompt); i < len(row); i++ {
				logits, all := e.Logits[(i-1)*f.Model.Vocab:][:f.Model.Vocab], 0.0
				for _, x := range logits {
					all += math.Exp(float64(x))
				}
				sum, n = sum+float64(logits[row[i]])-math.Log(all), n+1
			}
			sums, counts = append(sums, sum), append(counts, n)
		}
	}
	return sums, counts
}

// TestEvalPairs: eval compares pairs by each loss's formula, of log-probabilities that logits of each answer alone give, and says of pairs that a
// run validated with what the run said. What it compares with is the model that the run began with, or another that is named.
func TestEvalPairs(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	base, file := tiny(t, "max_steps: 20")
	var words trained
	call("train", file, "learning_rate=0.01", "--json").must(t, 0).into(t, &words)
	dir, file := tiny(t, "max_steps: 8", "eval_batches: 100")
	text, err := os.ReadFile(preferences(t, dir+"/all.jsonl", false))
	check(t, err)
	lines := strings.SplitAfter(string(text), "\n")
	pairs, held := dir+"/pairs.jsonl", dir+"/held.jsonl"
	check(t, os.WriteFile(pairs, []byte(strings.Join(lines[:100], "")), 0o644))
	check(t, os.WriteFile(held, []byte(strings.Join(lines[100:], "")), 0o644))
	args := []string{"train", file, "data=" + pairs, "validation=" + held, "model=" + words.Checkpoint, "tokenizer=" + words.Checkpoint, "learning_rate=0.003", "precision=fp32", "--json"}
	runs := map[string]trained{}
	for loss, more := range map[string]string{"dpo": "lora={rank: 4}", "simpo": "precision=fp32"} {
		var got trained
		call(append(args, "out="+dir+"/"+loss, "preference={loss: "+loss+", beta: 0.7}", more)...).must(t, 0).into(t, &got)
		runs[loss] = got
		var r ranked
		call("eval", got.Checkpoint, held, "--json").must(t, 0).into(t, &r)
		if v := got.ValRewards; r.Preference != loss || r.Pairs != 20 || r.Accuracy != v.Accuracy || math.Abs(r.Loss-got.ValLoss) > 1e-6 || math.Abs(r.Margin-v.Margin) > 1e-5 || math.Abs(r.Chosen-v.Chosen) > 1e-5 {
			t.Errorf("%s: %+v, the run has %v and %+v", loss, r, got.ValLoss, v)
		}
	}
	dpo, simpo := runs["dpo"].Checkpoint, runs["simpo"].Checkpoint
	said := fmt.Sprintf("dpo: loss %.4f (0.6931 is indifference), %s, over 20 pairs\n", runs["dpo"].ValLoss, runs["dpo"].ValRewards.Means())
	if r := call("eval", dpo, held).must(t, 0); r.stdout != said {
		t.Errorf("%q, want %q", r.stdout, said)
	}

	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	own, counts := logProbabilities(t, dpo, held)
	reference, _ := logProbabilities(t, words.Checkpoint, held)
	other, _ := logProbabilities(t, simpo, held)
	zero := make([]float64, len(own))
	for _, c := range []struct {
		loss    string
		args    []string
		beta    float64
		from    []float64
		average bool
		formula func(c, r float64) float64
	}{
		{"dpo", nil, 0.7, reference, false, func(c, r float64) float64 { return -math.Log(sigmoid(0.7 * (c - r))) }},
		{"dpo", []string{"--beta", "2", "--reference", simpo}, 2, other, false, func(c, r float64) float64 { return -math.Log(sigmoid(2 * (c - r))) }},
		{"ipo", []string{"--preference", "ipo"}, 0.1, reference, true, func(c, r float64) float64 { return (c - r - 5) * (c - r - 5) }},
		{"simpo", []string{"--preference", "simpo"}, 2, zero, true, func(c, r float64) float64 { return -math.Log(sigmoid(2*(c-r) - 1)) }},
		{"orpo", []string{"--preference", "orpo", "--beta", "0.3"}, 0.3, zero, true, func(c, r float64) float64 {
			odds := func(x float64) float64 { return x - math.Log(1-math.Exp(x)) }
			return -c - 0.3*math.Log(sigmoid(odds(c)-odds(r)))
		}},
	} {
		var want folder.Rewards
		loss, n := 0.0, len(own)/2
		of := func(i int) float64 {
			if c.average {
				return (own[i] - c.from[i]) / counts[i]
			}
			return own[i] - c.from[i]
		}
		for k := range n {
			chosen, rejected := of(2*k), of(2*k+1)
			loss += c.formula(chosen, rejected) / float64(n)
			want.Chosen += c.beta * chosen / float64(n)
			want.Rejected += c.beta * rejected / float64(n)
			if chosen > rejected {
				want.Accuracy += 1 / float64(n)
			}
		}
		var r ranked
		call(append([]string{"eval", dpo, held, "--json"}, c.args...)...).must(t, 0).into(t, &r)
		if r.Preference != c.loss || math.Abs(r.Loss-loss) > 2e-5*max(1, loss) || math.Abs(r.Accuracy-want.Accuracy) > 1e-9 || math.Abs(r.Chosen-want.Chosen) > 5e-5 || math.Abs(r.Rejected-want.Rejected) > 5e-5 || r.Margin != r.Chosen-r.Rejected {
			t.Errorf("%s %v: %+v, want %v and %+v", c.loss, c.args, r, loss, want)
		}
	}

	var part, all ranked
	call("eval", words.Checkpoint, pairs, "--preference", "simpo", "--sequence", "32", "--batches", "3", "--json").must(t, 0, "evaluated: ", " of 100 pairs").into(t, &part)
	call("eval", words.Checkpoint, pairs, "--preference", "simpo", "--quantize", "nf4", "--batches", "1000", "--json").must(t, 0).into(t, &all)
	if part.Pairs < 3 || part.Pairs > 15 || all.Pairs != 100 {
		t.Errorf("%d and %d pairs", part.Pairs, all.Pairs)
	}
	long := dir + "/long.jsonl"
	check(t, os.WriteFile(long, []byte(lines[0]+`{"prompt": "a", "chosen": "`+strings.Repeat("gold ", 40)+`", "rejected": "b"}`+"\n"), 0o644))
	if r := call("eval", dpo, long).must(t, 0, "pairs left out", "more than 33 tokens"); !strings.HasSuffix(r.stdout, "over 1 pairs\n") {
		t.Errorf("%q", r.stdout)
	}
	for _, c := range []struct{ args, wants []string }{
		{[]string{words.Checkpoint, held}, []string{"does not say by which loss", "hint: --preference"}},
		{[]string{words.Checkpoint, held, "--preference", "dpo"}, []string{"which model its run began with", "hint: --reference FOLDER"}},
		{[]string{words.Checkpoint, held, "--preference", "kto"}, []string{"single answers", "hint: --preference dpo"}},
		{[]string{words.Checkpoint, held, "--preference", "reward"}, []string{"reward model", "hint: "}},
		{[]string{words.Checkpoint, held, "--preference", "dop"}, []string{"--preference", "is not one of", "dpo"}},
		{[]string{words.Checkpoint, held, "--preference", "simpo", "--beta=-1"}, []string{"--beta is -1", "hint: "}},
		{[]string{words.Checkpoint, held, "--preference", "simpo", "--beta", "NaN"}, []string{"--beta is NaN", "hint: "}},
		{[]string{simpo, held, "--reference", words.Checkpoint}, []string{"simpo has no reference", "hint: "}},
		{[]string{dpo, held, "--reference", base + "/nowhere"}, []string{"the reference: ", "hint: "}},
		{[]string{dpo, base + "/corpus.txt", "--beta", "1"}, []string{"belong to pairs", "hint: "}},
		{[]string{dpo, long, "--sequence", "4"}, []string{"none of 2 pairs fits", "hint: "}},
		{[]string{dpo, held, "--logits", dir + "/l.safetensors"}, []string{"hint: "}},
		{[]string{dpo, held, "--predictions", dir + "/p.jsonl"}, []string{"--predictions needs a model with labels"}},
	} {
		call(append([]string{"eval"}, c.args...)...).must(t, 2, c.wants...)
	}
	call("eval", dpo, base+"/corpus.txt").must(t, 0) // which is text
	check(t, os.Rename(words.Checkpoint, base+"/moved"))
	call("eval", dpo, held, "--preference", "simpo").must(t, 2)
	call("eval", simpo, held).must(t, 0)
}
