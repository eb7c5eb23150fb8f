package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/train"
)

// preferences writes pairs about metals, as conversations if chats: the chosen answer has the metal's colour.
func preferences(t *testing.T, path string, chats bool) string {
	t.Helper()
	metals := []string{"gold", "iron", "copper", "silver"}
	r := rand.New(rand.NewPCG(5, 6))
	said := func(role, text string) []map[string]string {
		return []map[string]string{{"role": role, "content": text}}
	}
	var b strings.Builder
	for range 120 {
		m := r.IntN(4)
		asked, right, wrong := metals[m]+"?", colours[metals[m]], colours[metals[(m+1+r.IntN(3))%4]]
		var line any = map[string]string{"prompt": asked, "chosen": right, "rejected": wrong}
		if chats {
			line = map[string]any{"prompt": said("user", asked), "chosen": said("assistant", right), "rejected": said("assistant", wrong)}
		}
		text, err := json.Marshal(line)
		check(t, err)
		b.Write(append(text, '\n'))
	}
	check(t, os.WriteFile(path, []byte(b.String()), 0o644))
	return path
}

// steps reads metrics.jsonl.
func steps(t *testing.T, dir string) (list []train.Metrics) {
	t.Helper()
	f, err := os.Open(dir + "/metrics.jsonl")
	check(t, err)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var m train.Metrics
		check(t, json.Unmarshal(s.Bytes(), &m))
		list = append(list, m)
	}
	return list
}

// TestPreference: a run on pairs learns which answer is preferred, starting at a loss of log 2. Stopped, and resumed in other memory, it is
// the same run: the reference is that of its beginning. This holds with everything trained, in bf16 and with adapters on conversations.
func TestPreference(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	base, _ := modelFolder(t, "model: {type: llama, layers: 2, width: 32, heads: 4}")
	for _, c := range []struct {
		name  string
		chats bool
		loss  float64 // at most, in the end
		limit string  // of the device, in another run
		args  []string
	}{
		{"all", false, 0.65, "400KiB", []string{"model={type: llama, layers: 2, width: 32, heads: 4}", "learning_rate=0.003"}},
		{"bf16", false, 0.65, "400KiB", []string{"model=" + base, "tokenizer=" + base, "precision=bf16", "learning_rate=0.003"}},
		{"lora", true, 0.69, "600KiB", []string{"model={type: qwen2, layers: 2, width: 32, heads: 4}", "tokenizer=" + chatFolder, "sequence_length=144", "learning_rate=0.003"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, file := tiny(t, "max_steps: 12", "eval_batches: 100", "validation_fraction: 0.1", "eval_every: 5")
			pairs := preferences(t, dir+"/pairs.jsonl", c.chats)
			args := append([]string{"train", file, "data=" + pairs, "preference={beta: 0.3}"}, c.args...)
			if c.name == "lora" { // adapters need a folder
				call(append(args, "max_steps=1", "out="+dir+"/base")...).must(t, 0)
				args = append(args, "model="+dir+"/base/checkpoint-1", "lora={rank: 4}", "learning_rate=0.02")
			}
			var got trained
			call(append(args, "out="+dir+"/a", "--json")...).must(t, 0, "120 pairs of a chosen and a rejected answer", "108 pairs to train on and 12 to validate with, in ", " windows, of which ", "reference: computing the log-probabilities of 120 pairs").into(t, &got)
			list := steps(t, dir+"/a")
			if r := got.ValRewards; r == nil || r.Pairs != 12 || list[0].Pairs < 4 {
				t.Errorf("validation on %+v, the first step on %+v", r, list[0].Rewards)
			}
			if first := list[0]; math.Abs(first.Loss-math.Ln2) > 1e-7 || first.Rewards == nil || first.Margin != 0 || first.Chosen != 0 || first.Accuracy != 0 {
				t.Errorf("the first step's loss is %v, rewards %+v", first.Loss, first.Rewards)
			}
			if r := got.ValRewards; r == nil || r.Accuracy <= 0.5 || r.Margin <= 0 || math.Abs(r.Chosen-r.Rejected-r.Margin) > 1e-6 || got.ValLoss > c.loss {
				t.Errorf("after the last step: validation loss %v, rewards %+v", got.ValLoss, r)
			}
			if at := list[4]; at.ValRewards == nil || at.ValLoss == 0 {
				t.Errorf("step 5 has no validation: %+v", at)
			}

			again := append(args, "out="+dir+"/b", "save_every=4", "keep_checkpoints=9", "global_batch=4")
			call(append(again, "limits.device="+c.limit, "plan.weights=host", "plan.micro_batch=1", "plan.recompute=full")...).must(t, 0)
			sameRun(t, dir+"/b", dir+"/a", 12)
			for _, step := range []int{8, 12} {
				check(t, os.RemoveAll(fmt.Sprintf("%s/b/checkpoint-%d", dir, step))) // as if it had been stopped
			}
			call(again...).must(t, 0, "resuming "+dir+"/b/checkpoint-4")
			sameRun(t, dir+"/b", dir+"/a", 12)
			other := steps(t, dir+"/b")
			for i, m := range list {
				if *m.Rewards != *other[i].Rewards {
					t.Errorf("step %d: rewards %+v, of the run that went on %+v", i+1, m.Rewards, other[i].Rewards)
				}
			}
			call(append(again, "preference.beta=0.2")...).must(t, 2, "belongs to another run")
		})
	}
}

// TestPreferenceRanks: several ranks compute what one does, up to the order of sums.
func TestPreferenceRanks(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 6")
	args := []string{"train", file, "data=" + preferences(t, dir+"/pairs.jsonl", false), "preference.beta=0.3"}
	call(append(args, "out="+dir+"/one")...).must(t, 0)
	for i, more := range []string{"plan.pipeline=1", "plan={pipeline: 2, schedule: chimera}", "plan={pipeline: 2, schedule: 1f1b}", "plan.sequence=2", "plan={pipeline: 2, sequence: 2, tensor: 1} ranks=4", "plan={sequence: 2, tensor: 2} ranks=4"} {
		out := fmt.Sprintf("%s/%d", dir, i)
		plan, ranks, _ := strings.Cut(more, " ranks=")
		call(append(args, "out="+out, "ranks="+cmp.Or(ranks, "2"), plan)...).must(t, 0)
		a, b := steps(t, out), steps(t, dir+"/one")
		if !slices.EqualFunc(a, b, func(x, y train.Metrics) bool {
			return math.Abs(x.Loss-y.Loss) < 1e-5 && math.Abs(x.Margin-y.Margin) < 1e-4 && math.Abs(x.Rejected-y.Rejected) < 1e-4
		}) {
			t.Errorf("%s: %+v, on one rank %+v", more, a, b)
		}
	}
}

// TestPreferencePacking: what windows hold, and which pairs are left out, is reported of all sources, of what is held out and of what there is to
// validate with.
func TestPreferencePacking(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1")
	text, err := os.ReadFile(preferences(t, dir+"/all.jsonl", false))
	check(t, err)
	lines := strings.SplitAfter(string(text), "\n")
	long := func(n int) string {
		return strings.Repeat(fmt.Sprintf("{\"prompt\": \"gold?\", \"chosen\": \"%s\", \"rejected\": \"no\"}\n", strings.Repeat("yellow ", 50)), n)
	}
	write := func(name string, from, to int, more string) string {
		path := dir + "/" + name
		check(t, os.WriteFile(path, []byte(strings.Join(lines[from:to], "")+more), 0o644))
		return path
	}
	a, b, v := write("a.jsonl", 0, 60, long(2)), write("b.jsonl", 60, 100, long(3)), write("v.jsonl", 100, 120, long(1))
	windows := regexp.MustCompile(`in (\d+) and (\d+) windows, of which \d+ % is padding`)
	for _, c := range []struct {
		args  []string
		wants []string
	}{
		{[]string{"data=[" + a + ", " + b + "]", "validation=" + v}, []string{"100 pairs to train on and 20 to validate with", "; pairs left out, since they have more than 33 tokens: 5;", "; pairs left out, since they have more than 33 tokens: 1"}},
		{[]string{"data=" + a, "validation_fraction=0.05"}, []string{"57 pairs to train on and 3 to validate with", "more than 33 tokens: 2;"}}, // which are held out
	} {
		r := call(append([]string{"plan", file, "preference.beta=0.1", "global_batch=1"}, c.args...)...).must(t, 0, c.wants...)
		if n := windows.FindStringSubmatch(r.stderr + r.stdout); n == nil || n[1] == n[2] {
			t.Errorf("%v: %v\n%s", c.args, n, r.stderr)
		}
	}
}

// TestPreferenceErrors: what cannot be trained on pairs, or together with them, is named.
func TestPreferenceErrors(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1")
	pairs := "data=" + preferences(t, dir+"/pairs.jsonl", false)
	chats := "data=" + preferences(t, dir+"/chats.jsonl", true)
	same := dir + "/same.jsonl"
	check(t, os.WriteFile(same, []byte(strings.Repeat(`{"prompt": "gold?", "chosen": "yellow", "rejected": "yellow"}`+"\n", 20)), 0o644))
	for _, c := range []struct{ args, want []string }{
		{[]string{"data=" + same, "preference.beta=0.1"}, []string{"data", "all 19 pairs", "identical answers", "hint: "}},
		{[]string{pairs}, []string{"data", "120 pairs", "hint: set preference: {beta: 0.1}"}},
		{[]string{"preference.beta=0.1"}, []string{"data", "0 of 1 documents", "hint: "}},
		{[]string{pairs, "preference.beta=0.1", "model={type: gpt2, layers: 1, width: 32, heads: 4}"}, []string{"preference: ", "learned positions", "hint: "}},
		{[]string{pairs, "preference.beta=0.1", "ranks=2", "plan={pipeline: 2, slices: 2}"}, []string{"plan.slices", "preference", "hint: "}},
		{[]string{pairs, "preference.beta=0.1", "sequence_length=4"}, []string{"data", "none of 120 pairs", "hint: use a longer sequence_length"}},
		{[]string{pairs, "preference.beta=0.1", "sequence_length=1"}, []string{"hint: "}},
		{[]string{pairs, "preference.beta=0.1", "global_batch=1000"}, []string{"global_batch", "hint: "}},
		{[]string{pairs, "preference.beta=.nan"}, []string{"preference.beta"}},
		{[]string{chats, "preference.beta=0.1"}, []string{"chat template"}},
	} {
		call(append([]string{"train", file}, c.args...)...).must(t, 2, c.want...)
	}
	call("train", file).must(t, 0)
	call("eval", dir+"/run/checkpoint-1", dir+"/pairs.jsonl").must(t, 2, "pairs")
}

// TestPairLosses: a run learns from pairs with each of the losses, and a run that was stopped goes on with the same bits. Without
// a reference none is computed.
func TestPairLosses(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, c := range testkit.Sample([][2]string{{"ipo", "0.3"}, {"simpo", "2"}, {"orpo", "0.5"}}, 1, 1) {
		loss, beta := c[0], c[1]
		dir, file := tiny(t, "max_steps: 12", "eval_batches: 100", "validation_fraction: 0.1")
		args := []string{"train", file, "data=" + preferences(t, dir+"/pairs.jsonl", false), "preference.beta=" + beta, "preference.loss=" + loss, "learning_rate=0.003"}
		var got trained
		r := call(append(args, "out="+dir+"/a", "--json")...).must(t, 0)
		r.into(t, &got)
		if has := strings.Contains(r.stderr, "reference: computing"); has != (loss == "ipo") {
			t.Errorf("%s: a reference is computed: %v", loss, has)
		}
		list := steps(t, dir+"/a")
		if got.ValRewards == nil || got.ValRewards.Accuracy <= 0.5 || list[11].Loss >= list[0].Loss {
			t.Errorf("%s: losses from %v to %v, rewards %+v", loss, list[0].Loss, list[11].Loss, got.ValRewards)
		}
		again := append(args, "out="+dir+"/b", "save_every=4", "keep_checkpoints=9")
		call(append(again, "plan.weights=host", "plan.micro_batch=1")...).must(t, 0)
		for _, step := range []int{8, 12} {
			check(t, os.RemoveAll(fmt.Sprintf("%s/b/checkpoint-%d", dir, step)))
		}
		call(again...).must(t, 0, "resuming "+dir+"/b/checkpoint-4")
		sameRun(t, dir+"/b", dir+"/a", 12)
		call(append(again, "preference.loss=dpo")...).must(t, 2, "belongs to another run")
	}
	_, file := tiny(t)
	call("train", file, "preference={beta: 0.1, loss: bco}").must(t, 2, "preference.loss", "dpo, ipo, simpo, orpo, kto, apo_zero_unpaired")
	call("train", file, "preference={beta: 0.1, desirable_weight: 2}").must(t, 2, "preference.desirable_weight", "hint: set preference.loss: kto")
	call("train", file, "preference={beta: 0.1, loss: kto, undesirable_weight: 0}").must(t, 2, "preference.undesirable_weight", "out of range")
	call("train", file, "preference={beta: 0.1, margin: 1}").must(t, 2, "preference.margin", "simpo")
}
