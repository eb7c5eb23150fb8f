package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/train"
)

// labelled writes texts about metals, each labelled with its colour.
func labelled(t *testing.T, path string) string {
	t.Helper()
	metals := []string{"gold", "iron", "copper", "silver"}
	r := rand.New(rand.NewPCG(6, 7))
	var b strings.Builder
	for n := range 160 {
		m := metals[r.IntN(4)]
		row := map[string]any{"text": strings.Repeat("a piece of ", r.IntN(3)) + m, "label": colours[m]}
		if n%2 == 1 {
			row["label"] = map[string]int{"yellow": 0, "grey": 1, "red": 2, "white": 3}[colours[m]]
		}
		text, err := json.Marshal(row)
		check(t, err)
		b.Write(append(text, '\n'))
	}
	check(t, os.WriteFile(path, []byte(b.String()), 0o644))
	return path
}

// TestLabels: a run learns to choose among labels, from random weights, from a language model's folder, whose head it replaces, and on from its
// own; and with adapters. In other memory, stopped and resumed it is the same run; on two ranks, up to the order of sums. What it
// has written is evaluated as the run has it, and writes no text.
func TestLabels(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 12", "eval_batches: 100", "validation_fraction: 0.2", "eval_every: 5")
	names := fmt.Sprintf("labels=[%s, %s, %s, %s]", colours["gold"], colours["iron"], colours["copper"], colours["silver"])
	rows := labelled(t, dir+"/rows.jsonl")
	args := []string{"train", file, "data=" + rows, names, "learning_rate=0.02"}
	var got trained
	call(append(args, "out="+dir+"/a", "--json")...).must(t, 0, "160 documents with a label", "texts to train on: 128 (", "to validate with: 32 (").into(t, &got)
	list := steps(t, dir+"/a")
	if first := list[0].Loss; math.Abs(first-math.Log(4)) > 0.3 || list[4].ValAccuracy == nil || list[3].ValAccuracy != nil {
		t.Errorf("the first loss is %v, accuracies %v and %v", first, list[3].ValAccuracy, list[4].ValAccuracy)
	}
	if got.ValAccuracy == nil || *got.ValAccuracy < 0.9 || got.BitsPerByte != 0 {
		t.Errorf("after the last step: validation loss %v, accuracy %v", got.ValLoss, got.ValAccuracy)
	}
	again := append(args, "out="+dir+"/b", "save_every=4", "keep_checkpoints=9")
	call(append(again, "limits.device=400KiB", "plan.weights=host", "plan.micro_batch=1", "plan.recompute=full")...).must(t, 0)
	sameRun(t, dir+"/b", dir+"/a", 12)
	for _, step := range []int{8, 12} {
		check(t, os.RemoveAll(fmt.Sprintf("%s/b/checkpoint-%d", dir, step)))
	}
	call(again...).must(t, 0, "resuming "+dir+"/b/checkpoint-4")
	sameRun(t, dir+"/b", dir+"/a", 12)
	for k, more := range []string{"plan.pipeline=1", "plan={pipeline: 2, schedule: chimera}", "plan.sequence=2", "plan.tensor=2"} {
		out := fmt.Sprintf("%s/%d", dir, k)
		var ranks trained
		call(append(args, "out="+out, "ranks=2", more, "--json")...).must(t, 0).into(t, &ranks)
		for i, m := range steps(t, out) {
			if x := list[i]; math.Abs(m.Loss-x.Loss) > 1e-3*max(1, x.Loss) {
				t.Errorf("%s, step %d: %v, on one rank %v", more, i+1, m.Loss, x.Loss)
			}
		}
		if ranks.ValAccuracy == nil || math.Abs(*ranks.ValAccuracy-*got.ValAccuracy) > 0.04 {
			t.Errorf("%s: accuracy %v, on one rank %v", more, ranks.ValAccuracy, got.ValAccuracy)
		}
	}
	var guessed struct {
		Loss, Accuracy float64
		Texts          int
	}
	call("eval", got.Checkpoint, rows, "--batches", "1000", "--sequence", "32", "--json").must(t, 0).into(t, &guessed)
	if guessed.Texts != 160 || guessed.Accuracy < 0.9 || !(guessed.Loss > 0 && guessed.Loss < 0.5) {
		t.Errorf("evaluated: %+v", guessed)
	}
	long := dir + "/long.jsonl" // longer than what the run has seen
	check(t, os.WriteFile(long, []byte(`{"text": "`+strings.Repeat("gold and iron ", 12)+`", "label": 0}`+"\n"), 0o644))
	blind := dir + "/blind.jsonl" // the same texts without labels
	text, err := os.ReadFile(rows)
	check(t, err)
	check(t, os.WriteFile(blind, regexp.MustCompile(`"label":[^,]*,`).ReplaceAll(text, nil), 0o644))
	call("eval", got.Checkpoint, blind, "--predictions", dir+"/said.jsonl", "--sequence", "32").must(t, 0)
	said, right := predictions(t, dir+"/said.jsonl"), 0
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if p := said[i]; strings.Contains(line, fmt.Sprintf("%q", p.Label)) || strings.Contains(line, fmt.Sprintf(`"label":%d,`, slices.Index([]string{"yellow", "grey", "red", "white"}, p.Label))) {
			right++
		}
		if p := said[i]; p.Probability < 0.25 || p.Probability > 1 {
			t.Errorf("row %d: %+v", i, p)
		}
	}
	if len(said) != 160 || float64(right)/160 != guessed.Accuracy {
		t.Errorf("%d predictions, of which %d are right; evaluated %v", len(said), right, guessed.Accuracy)
	}
	for _, more := range []string{"", "--predictions=" + dir + "/long.json"} {
		call(slices.DeleteFunc([]string{"eval", got.Checkpoint, long, more}, func(s string) bool { return s == "" })...).must(t, 0, "more than 32 tokens: 1")
	}
	call("eval", got.Checkpoint, blind, "--predictions", dir+"/said.jsonl", "--skip-bad").must(t, 2, "--skip-bad", "hint: ")
	call("eval", got.Checkpoint, blind, "--sequence", "32").must(t, 2, `"label" is missing`)
	call("eval", got.Checkpoint, blind, rows, "--predictions", dir+"/said.jsonl").must(t, 2, "one file", "hint: ")
	call("generate", got.Checkpoint, "--prompt", "gold").must(t, 2, "has a head with labels", "hint: athanor eval")
	call(append(args, "out="+dir+"/c", "model="+got.Checkpoint, "max_steps=1")...).must(t, 0, "starting from the weights in")
	if first := steps(t, dir+"/c")[0].Loss; first > list[8].Loss {
		t.Errorf("from its own folder, the first loss is %v", first)
	}
	call(append(args, "out="+dir+"/d", "model="+got.Checkpoint, strings.TrimSuffix(names, "]")+", blue]")...).must(t, 2, "the model has 4 labels")
	const other = "labels=[grey, yellow, red, white]"
	call(append(args, "out="+dir+"/d", "model="+got.Checkpoint, other)...).must(t, 2, "the model chooses among yellow, grey, red, white, in this order", "hint: set labels: [yellow")
	call(append(again, other, "max_steps=14")...).must(t, 2, "belongs to another run", "label_names")
	plain := []string{"train", file, "out=" + dir + "/words", "max_steps=2"}
	var words trained
	call(append(plain, "--json")...).must(t, 0).into(t, &words)
	call(append(plain, "out="+dir+"/e", "model="+got.Checkpoint)...).must(t, 2, "labels: missing, but the model chooses among", "hint: set labels: [")
	call(append(args, "out="+dir+"/f", "model="+words.Checkpoint)...).must(t, 0, "the head, score.weight, begins as random numbers")
	var adapted trained
	call(append(args, "out="+dir+"/g", "model="+words.Checkpoint, "lora={rank: 2}", "--json")...).must(t, 0, "score.weight").into(t, &adapted)
	call(append(args, "out="+dir+"/i", "model="+adapted.Checkpoint, other)...).must(t, 2, "the model chooses among yellow, grey, red, white, in this order")
	if _, err := os.Stat(adapted.Checkpoint + "/generation_config.json"); !os.IsNotExist(err) {
		t.Errorf("the adapter has a generation_config.json: %v", err)
	}
	call(append(args, "out="+dir+"/j", "max_steps=1", strings.TrimSuffix(names, "]")+", a, b, c, d, e, f, g, h, i]")...).must(t, 0, "has the labels a, b, c, d, e, f, g, h, ...\n")
	var first, second train.Summary
	call("eval", adapted.Checkpoint, rows, "--batches", "1000", "--sequence", "32", "--json").must(t, 0).into(t, &first)
	call("merge", adapted.Checkpoint, dir+"/merged").must(t, 0)
	call("eval", adapted.Checkpoint, rows, "--predictions", dir+"/said.jsonl", "--sequence", "32").must(t, 0)
	call("eval", dir+"/merged", rows, "--predictions", dir+"/merged.jsonl", "--sequence", "32").must(t, 0)
	for i, p := range predictions(t, dir+"/merged.jsonl") {
		if q := predictions(t, dir+"/said.jsonl")[i]; p.Label != q.Label || math.Abs(p.Probability-q.Probability) > 1e-5 {
			t.Errorf("row %d: %+v, before merging %+v", i, p, q)
		}
	}
	call("export", adapted.Checkpoint, dir+"/m.gguf", "--gguf", "f32").must(t, 2, "has a head with labels (yellow, grey, red, white)", "hint: leave out --gguf")
	call("export", got.Checkpoint, dir+"/half", "--precision", "bf16").must(t, 0)
	call("eval", dir+"/half", rows, "--batches", "1000", "--sequence", "32", "--json").must(t, 0).into(t, &guessed)
	if guessed.Accuracy < 0.9 {
		t.Errorf("exported in bf16: %+v", guessed)
	}
	call(append(args, "out="+dir+"/h", "model="+adapted.Checkpoint, "max_steps=1", "--json")...).must(t, 0, "starting from the adapter").into(t, &second)
}

// weighed writes texts about metals, each with how heavy it is.
func weighed(t *testing.T, path string) string {
	t.Helper()
	metals, density := []string{"gold", "iron", "copper", "silver"}, []float64{1.93, 0.787, 0.896, 1.049}
	r := rand.New(rand.NewPCG(8, 9))
	var b strings.Builder
	for range 160 {
		k := r.IntN(4)
		fmt.Fprintf(&b, "{\"text\": \"%s%s\", \"label\": %v}\n", strings.Repeat("a piece of ", r.IntN(3)), metals[k], density[k])
	}
	check(t, os.WriteFile(path, []byte(b.String()), 0o644))
	return path
}

// TestRegression: a run learns a number of each text, from random weights, on from its own folder, and with adapters. In other memory, stopped and
// resumed it is the same run; on two ranks, up to the order of sums. What it has written is evaluated as the run has it, and config.json
// says what transformers' does.
func TestRegression(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 60", "eval_batches: 100", "validation_fraction: 0.2", "eval_every: 5")
	rows := weighed(t, dir+"/rows.jsonl")
	args := []string{"train", file, "data=" + rows, "labels=weight", "learning_rate=0.02"}
	var got trained
	call(append(args, "out="+dir+"/a", "--json")...).must(t, 0, "texts to train on: 128 (weight from 0.787 to 1.93, mean 1.", "to validate with: 32 (weight").into(t, &got)
	list := steps(t, dir+"/a")
	if got.ValFit == nil || got.ValFit.R2 < 0.8 || got.ValFit.Pearson < 0.9 || got.ValAccuracy != nil || got.ValLoss > 0.05 || list[4].ValFit == nil {
		t.Errorf("after the last step: mean squared error %v, %+v", got.ValLoss, got.ValFit)
	}
	again := append(args, "out="+dir+"/b", "save_every=20", "keep_checkpoints=9")
	call(append(again, "limits.device=400KiB", "plan.weights=host", "plan.micro_batch=1", "plan.recompute=full")...).must(t, 0)
	sameRun(t, dir+"/b", dir+"/a", 60)
	for _, step := range []int{40, 60} {
		check(t, os.RemoveAll(fmt.Sprintf("%s/b/checkpoint-%d", dir, step)))
	}
	call(again...).must(t, 0, "resuming "+dir+"/b/checkpoint-20")
	sameRun(t, dir+"/b", dir+"/a", 60)
	for k, more := range []string{"plan.pipeline=1", "plan={pipeline: 2, schedule: chimera}", "plan.sequence=2", "plan.tensor=2"} {
		out := fmt.Sprintf("%s/%d", dir, k)
		var ranks trained
		call(append(args, "out="+out, "ranks=2", more, "--json")...).must(t, 0).into(t, &ranks)
		for i, m := range steps(t, out)[:12] {
			if x := list[i]; math.Abs(m.Loss-x.Loss) > 1e-3*max(1, x.Loss) {
				t.Errorf("%s, step %d: %v, on one rank %v", more, i+1, m.Loss, x.Loss)
			}
		}
		if ranks.ValFit == nil || math.Abs(ranks.ValFit.R2-got.ValFit.R2) > 0.04 {
			t.Errorf("%s: %+v, on one rank %+v", more, ranks.ValFit, got.ValFit)
		}
	}
	var config struct {
		Architectures []string
		Problem       string            `json:"problem_type"`
		Names         map[string]string `json:"id2label"`
	}
	text, err := os.ReadFile(got.Checkpoint + "/config.json")
	check(t, err)
	check(t, json.Unmarshal(text, &config))
	if config.Architectures[0] != "LlamaForSequenceClassification" || config.Problem != "regression" || len(config.Names) != 1 || config.Names["0"] != "weight" {
		t.Errorf("%s", text)
	}
	var fitted struct {
		Loss, Pearson, R2 float64
		Texts             int
	}
	call("eval", got.Checkpoint, rows, "--batches", "1000", "--json").must(t, 0).into(t, &fitted)
	call("eval", got.Checkpoint, rows, "--predictions", dir+"/said.jsonl").must(t, 0)
	text, err = os.ReadFile(rows)
	check(t, err)
	said, off := predictions(t, dir+"/said.jsonl"), 0.0
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var row struct{ Label float64 }
		check(t, json.Unmarshal([]byte(line), &row))
		off += (*said[i].Value - row.Label) * (*said[i].Value - row.Label) / 160
	}
	if fitted.Texts != 160 || len(said) != 160 || math.Abs(off-fitted.Loss) > 1e-5 || fitted.R2 < 0.8 {
		t.Errorf("evaluated: %+v; by predictions %v", fitted, off)
	}
	call("train", file, "out="+dir+"/d", "model="+got.Checkpoint).must(t, 2, "gives each text a number, weight", "hint: set labels: [weight]")
	call(append(args, "out="+dir+"/c", "model="+got.Checkpoint, "max_steps=1")...).must(t, 0, "starting from the weights in")
	if first := steps(t, dir+"/c")[0].Loss; first > list[8].Loss {
		t.Errorf("from its own folder, the first loss is %v", first)
	}
	var words, adapted trained
	call("train", file, "out="+dir+"/words", "max_steps=2", "--json").must(t, 0).into(t, &words)
	call(append(args, "out="+dir+"/g", "model="+words.Checkpoint, "lora={rank: 2}", "--json")...).must(t, 0, "score.weight").into(t, &adapted)
	call("eval", adapted.Checkpoint, rows, "--batches", "1000", "--json").must(t, 0).into(t, &fitted)
	if fitted.Texts != 160 || fitted.Pearson < 0.5 {
		t.Errorf("with adapters: %+v", fitted)
	}
	before := fitted.Loss
	call("merge", adapted.Checkpoint, dir+"/merged").must(t, 0)
	call("eval", dir+"/merged", rows, "--batches", "1000", "--json").must(t, 0).into(t, &fitted)
	if math.Abs(fitted.Loss-before) > 1e-5 {
		t.Errorf("merged: %+v, before %v", fitted, before)
	}
}

// predictions reads what eval has written.
func predictions(t *testing.T, path string) (list []folder.Prediction) {
	t.Helper()
	text, err := os.ReadFile(path)
	check(t, err)
	for line := range strings.Lines(string(text)) {
		var p folder.Prediction
		check(t, json.Unmarshal([]byte(line), &p))
		list = append(list, p)
	}
	return list
}

// TestLabelsErrors: what cannot be combined with labels is refused, and what to do is said.
func TestLabelsErrors(t *testing.T) {
	dir, file := tiny(t, "max_steps: 1")
	rows := "data=" + labelled(t, dir+"/rows.jsonl")
	for _, c := range []struct {
		args  []string
		wants []string
	}{
		{[]string{rows, "labels=1"}, []string{"data", "but with one label (LABEL_0) each row has a number", "hint: "}},
		{[]string{rows, "labels=0"}, []string{"labels", "there are 0", "hint: "}},
		{[]string{rows, "labels=[]"}, []string{"labels", "there are none", "hint: "}},
		{[]string{rows, "labels=[0, 1, 3]"}, []string{"labels", "is a number, but labels have numbers from 0, and this is 2", "hint: "}},
		{[]string{rows, "labels={a: b}"}, []string{"labels", "expected a name or a list of names", "hint: write a, or [a, b]"}},
		{[]string{rows, "labels=[a, a]"}, []string{"labels", "given twice", "hint: "}},
		{[]string{rows, "labels=[yellow, grey]"}, []string{"data", "hint: "}},
		{[]string{"labels=2"}, []string{"data", "0 of 1 documents have a label", "hint: "}},
		{[]string{rows, "labels=4", "preference.beta=0.1"}, []string{"labels", "preference", "hint: "}},
		{[]string{rows, "labels=4", "documents=whole"}, []string{"documents", "hint: "}},
		{[]string{rows, "labels=4", "sample={prompt: a, tokens: 3}"}, []string{"sample", "hint: "}},
		{[]string{rows, "labels=4", "precision=int8"}, []string{"precision", "hint: "}},
		{[]string{rows, "labels=[yellow, grey, red, white]", "plan.vocabulary_parts=2"}, []string{"vocabulary_parts", "hint: "}},
	} {
		call(append([]string{"train", file}, c.args...)...).must(t, 2, c.wants...)
	}
}

// TestRewardModel: a reward model learns to rank pairs, from random weights and with adapters; stopped and resumed it is the same run. What it has
// written is one of transformers' models with one label, is trained further, and writes no text.
func TestRewardModel(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 12", "eval_batches: 100", "validation_fraction: 0.2", "eval_every: 5")
	args := []string{"train", file, "data=" + preferences(t, dir+"/pairs.jsonl", false), "preference={beta: 1, loss: reward}", "learning_rate=0.02"}
	var got trained
	call(append(args, "out="+dir+"/a", "--json")...).must(t, 0, "pairs to train on").into(t, &got)
	if r := got.ValRewards; r == nil || r.Accuracy < 0.8 || r.Margin <= 0 || got.ValLoss > 0.6 {
		t.Errorf("after the last step: validation loss %v, rewards %+v", got.ValLoss, r)
	}
	again := append(args, "out="+dir+"/b", "save_every=4", "keep_checkpoints=9")
	call(append(again, "limits.device=400KiB", "plan.weights=host", "plan.micro_batch=1", "plan.recompute=full")...).must(t, 0)
	for _, step := range []int{8, 12} {
		check(t, os.RemoveAll(fmt.Sprintf("%s/b/checkpoint-%d", dir, step)))
	}
	call(again...).must(t, 0, "resuming "+dir+"/b/checkpoint-4")
	sameRun(t, dir+"/b", dir+"/a", 12)
	var config struct {
		Architectures []string
		Names         map[string]string `json:"id2label"`
		Pad           *int              `json:"pad_token_id"`
	}
	text, err := os.ReadFile(got.Checkpoint + "/config.json")
	check(t, err)
	check(t, json.Unmarshal(text, &config))
	if config.Architectures[0] != "LlamaForSequenceClassification" || len(config.Names) != 1 || config.Pad == nil {
		t.Errorf("%s", text)
	}
	call(append(args, "out="+dir+"/c", "model="+got.Checkpoint, "max_steps=1")...).must(t, 0, "starting from the weights in")
	if first, list := steps(t, dir+"/c")[0].Loss, steps(t, dir+"/a"); first > list[0].Loss {
		t.Errorf("from its own folder, the first loss is %v, once %v", first, list[0].Loss)
	}
	check(t, os.WriteFile(dir+"/two.jsonl", []byte(`{"prompt": "gold?", "completion": "yellow"}`+"\n"+`{"text": "gold?"}`+"\n"), 0o644))
	pairs, err := os.ReadFile(dir + "/pairs.jsonl")
	check(t, err)
	call("eval", got.Checkpoint, dir+"/two.jsonl", "--predictions", dir+"/said.jsonl").must(t, 0)
	if said := predictions(t, dir+"/said.jsonl"); len(said) != 2 || said[0].Reward == nil || said[1].Reward == nil || *said[0].Reward == *said[1].Reward {
		t.Errorf("rewards %+v", said)
	}
	var r ranked
	call("eval", got.Checkpoint, dir+"/pairs.jsonl", "--json").must(t, 0).into(t, &r)
	if v := got.ValRewards; r.Preference != "reward" || r.Pairs != 120 || r.Accuracy < 0.8 || math.Abs(r.Margin-v.Margin) > 2 || !(r.Loss > 0 && r.Loss < 0.6) {
		t.Errorf("evaluated: %+v", r)
	}
	asked, _, _ := strings.Cut(string(pairs), "\n")
	var pair struct{ Prompt, Chosen, Rejected string }
	check(t, json.Unmarshal([]byte(asked), &pair))
	check(t, os.WriteFile(dir+"/one.jsonl", []byte(asked+"\n"), 0o644))
	check(t, os.WriteFile(dir+"/both.jsonl", fmt.Appendf(nil, "{\"prompt\": %q, \"completion\": %q}\n{\"prompt\": %[1]q, \"completion\": %[3]q}\n", pair.Prompt, pair.Chosen, pair.Rejected), 0o644))
	call("eval", got.Checkpoint, dir+"/one.jsonl", "--json").must(t, 0).into(t, &r)
	call("eval", got.Checkpoint, dir+"/both.jsonl", "--predictions", dir+"/said.jsonl").must(t, 0)
	if said := predictions(t, dir+"/said.jsonl"); math.Abs(r.Chosen-*said[0].Reward) > 1e-5 || math.Abs(r.Rejected-*said[1].Reward) > 1e-5 || math.Abs(r.Loss-math.Log1p(math.Exp(-r.Margin))) > 1e-5 {
		t.Errorf("%+v, rewards %v and %v", r, *said[0].Reward, *said[1].Reward)
	}
	call("eval", got.Checkpoint, dir+"/two.jsonl").must(t, 2, "belong to pairs", "hint: ")
	call("eval", got.Checkpoint, dir+"/pairs.jsonl", "--preference", "dpo").must(t, 2, "is a reward model", "hint: ")
	call("generate", got.Checkpoint, "--prompt", "gold").must(t, 2, "has a head with labels")
	call("train", file, "out="+dir+"/d", "model="+got.Checkpoint).must(t, 2, "it is a reward model", "hint: set preference: {loss: reward")
	var words trained
	call("train", file, "out="+dir+"/words", "max_steps=2", "--json").must(t, 0).into(t, &words)
	call(append(args, "out="+dir+"/e", "model="+words.Checkpoint, "lora={rank: 2}")...).must(t, 0, "the head, score.weight, begins as random numbers")
	call(append(args, "preference.margin=1")...).must(t, 2, "preference.margin")
	call(append(args, "sample={prompt: a, tokens: 3}")...).must(t, 2, "sample", "hint: ")
}
