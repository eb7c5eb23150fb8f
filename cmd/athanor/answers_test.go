package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/train"
)

// answers writes single answers about metals, of which those that name the metal's colour are good.
func answers(t *testing.T, path string) string {
	t.Helper()
	metals := []string{"gold", "iron", "copper", "silver"}
	r := rand.New(rand.NewPCG(5, 6))
	var b strings.Builder
	for range 160 {
		m := r.IntN(4)
		good := r.IntN(2) == 1
		answer := colours[metals[m]]
		if !good {
			answer = colours[metals[(m+1+r.IntN(3))%4]]
		}
		text, err := json.Marshal(map[string]any{"prompt": metals[m] + "?", "completion": answer, "label": good})
		check(t, err)
		b.Write(append(text, '\n'))
	}
	check(t, os.WriteFile(path, []byte(b.String()), 0o644))
	return path
}

// TestAnswers: a run on single answers learns which are good, starting at half of their mean weight; it is told what it reads. In other
// memory, stopped and resumed, it is the same run, with the same estimates of the KL; on two ranks, up to the order of sums.
func TestAnswers(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, loss := range []string{"kto", "apo_zero_unpaired"} {
		dir, file := tiny(t, "max_steps: 12", "eval_batches: 100", "validation_fraction: 0.2", "eval_every: 5")
		args := []string{"train", file, "data=" + answers(t, dir+"/answers.jsonl"), "preference={beta: 0.5, loss: " + loss + "}", "learning_rate=0.01"}
		var got trained
		call(append(args, "out="+dir+"/a", "--json")...).must(t, 0, "160 documents with a label", "good and", "bad answers to train on", "reference: computing the log-probabilities of").into(t, &got)
		list := steps(t, dir+"/a")
		if first := list[0]; math.Abs(first.Loss-0.5) > 1e-7 || first.Rewards == nil || first.Answers < 4 || first.Margin != 0 || first.KL != 0 || first.Accuracy != 0 {
			t.Errorf("%s: the first step's loss is %v, rewards %+v", loss, first.Loss, first.Rewards)
		}
		if r := got.ValRewards; r == nil || r.Answers != 32 || r.Accuracy <= 0.6 || r.Margin <= 0 || math.Abs(r.Chosen-r.Rejected-r.Margin) > 1e-6 || got.ValLoss > 0.48 {
			t.Errorf("%s: after the last step: validation loss %v, rewards %+v", loss, got.ValLoss, r)
		}
		if estimated := slices.ContainsFunc(list, func(m train.Metrics) bool { return m.KL > 0 }); estimated != (loss == "kto") {
			t.Errorf("%s: a KL is estimated: %v", loss, estimated)
		}
		again := append(args, "out="+dir+"/b", "save_every=4", "keep_checkpoints=9")
		call(append(again, "limits.device=400KiB", "plan.weights=host", "plan.micro_batch=1", "plan.recompute=full")...).must(t, 0)
		sameRun(t, dir+"/b", dir+"/a", 12)
		for _, step := range []int{8, 12} {
			check(t, os.RemoveAll(fmt.Sprintf("%s/b/checkpoint-%d", dir, step)))
		}
		call(again...).must(t, 0, "resuming "+dir+"/b/checkpoint-4")
		sameRun(t, dir+"/b", dir+"/a", 12)
		for i, m := range steps(t, dir+"/b") {
			if *m.Rewards != *list[i].Rewards {
				t.Errorf("%s, step %d: rewards %+v, of the run that went on %+v", loss, i+1, m.Rewards, list[i].Rewards)
			}
		}
		call(append(again, "preference={beta: 0.5, loss: "+loss+", undesirable_weight: 2}")...).must(t, 2, "belongs to another run", "label_weights")
		for k, more := range []string{"plan.pipeline=1", "plan={pipeline: 2, schedule: chimera}", "plan.sequence=2"} {
			out := fmt.Sprintf("%s/%d", dir, k)
			call(append(args, "out="+out, "ranks=2", "max_steps=6", more)...).must(t, 0)
			for i, m := range steps(t, out) {
				if x := list[i]; math.Abs(m.Loss-x.Loss) > 1e-4 || math.Abs(m.KL-x.KL) > 1e-3*max(1, x.KL) || m.Answers != x.Answers {
					t.Errorf("%s, %s, step %d: %+v, on one rank %+v", loss, more, i+1, m, x)
				}
			}
		}
	}
}

// TestAnswersErrors: text without labels, too little of it, and keys of other losses are refused, and what to write is said.
func TestAnswersErrors(t *testing.T) {
	dir, file := tiny(t, "max_steps: 1")
	all := "data=" + answers(t, dir+"/answers.jsonl")
	few := dir + "/few.jsonl"
	check(t, os.WriteFile(few, []byte(strings.Repeat(`{"prompt": "a", "completion": "b", "label": true}`+"\n", 3)), 0o644))
	const kto = "preference={beta: 0.1, loss: kto}"
	for _, c := range []struct {
		args  []string
		wants []string
	}{
		{[]string{kto}, []string{"data", "0 of 1 documents have a label", "hint: "}},
		{[]string{all}, []string{`"label"`, "hint: set preference: {loss: kto"}},
		{[]string{all, "preference.beta=0.1"}, []string{`"label"`, "hint: set preference: {loss: kto"}},
		{[]string{"data=" + preferences(t, dir+"/pairs.jsonl", false), kto, "sequence_length=1"}, []string{"none of 240 answers", "hint: "}},
		{[]string{"data=" + few, kto}, []string{"only 3 answers", "hint: "}},
		{[]string{all, kto, "preference.margin=1"}, []string{"preference.margin", "hint: "}},
	} {
		call(append([]string{"train", file}, c.args...)...).must(t, 2, c.wants...)
	}
}
