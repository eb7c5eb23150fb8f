package train

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/data/chat"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/optimizer"
)

type events []string

func (*events) Step(Metrics)        {}
func (e *events) Event(text string) { *e = append(*e, text) }

// TestUnlikePredicted: a run whose steps take much longer, or much less, than
// was predicted says so, once.
func TestUnlikePredicted(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	file := runConfig(t, dir)
	for name, seconds := range map[string]float64{"slow": 1e6, "fast": 1e-9} {
		tr, _ := openRun(t, file, "max_steps=3", "out="+dir+"/"+name)
		for range 7 { // as if so many steps had been measured
			tr.Measured = append(tr.Measured, seconds)
		}
		var said events
		check(t, errors.Join(tr.Train(t.Context(), &said), tr.Close()))
		if n := strings.Count(strings.Join(said, "\n"), "were predicted; hint:"); n != 1 {
			t.Errorf("%s: said %d times: %q", name, n, said)
		}
	}
}

// TestSurprise: steps of any length that are not as predicted are reported with enough digits
// to show the difference.
func TestSurprise(t *testing.T) {
	for _, s := range []float64{1e-4, 0.02, 300} {
		text := surprise(2*s, s)
		_, rest, _ := strings.Cut(text, "steps take ")
		a, rest, _ := strings.Cut(rest, " s, ")
		if b, _, _ := strings.Cut(rest, " s were"); a == b || strings.Trim(b, "0.") == "" || !strings.Contains(text, "hint:") {
			t.Errorf("%v s instead of %v: %s", 2*s, s, text)
		}
		if text := surprise(1.1*s, s); text != "" {
			t.Errorf("a tenth more: %s", text)
		}
	}
}

// nothingLearnt are rows whose first 200 tokens are given.
var nothingLearnt = map[string]string{
	"prompt":       `{"prompt": "LONG", "completion": "stone"}`,
	"question":     `{"messages": [{"role": "user", "content": "LONG"}, {"role": "assistant", "content": "stone"}]}`,
	"instruction":  `{"system": "LONG", "instruction": "LONG", "output": "stone"}`,
	"other answer": `{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "LONG", "loss": false}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "stone"}]}`,
	"call's result": `{"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": []}, {"role": "tool", "content": "LONG"}],
		"completion": [{"role": "assistant", "content": "stone"}]}`,
}

// TestNothingLearnt: where all tokens are given there is no loss to report: validation says so, eval is refused, and so
// is a step, which can be made once there is something to learn.
func TestNothingLearnt(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	tr, _ := openRun(t, runConfig(t, dir), "max_steps=1", "documents=joined")
	held, train, all := tr.Setup.Held, tr.sampler, tr.Setup.Train
	template := chat.Open("../data/chat/testdata/chatml", tr.Setup.Tokenizer)
	var said events
	var tokens *data.Tokens
	var given data.Windows
	for _, name := range append(slices.Sorted(maps.Keys(nothingLearnt)), "prompt") { // the last one is used below
		text := dir + "/" + name + ".jsonl"
		line := strings.ReplaceAll(nothingLearnt[name], "LONG", strings.Repeat("gold and iron ", 400))
		check(t, os.WriteFile(text, []byte(strings.ReplaceAll(line, "\n", " ")), 0o644))
		corpus, err := data.OpenCorpus(text)
		check(t, err)
		tokens, err = data.Tokenize(t.Context(), corpus, tr.Setup.Tokenizer, dir, data.Options{Chat: template})
		check(t, err)
		t.Cleanup(func() { tokens.Close() })
		given, err = tokens.Windows(data.Range{First: 0, End: 200}, 32)
		check(t, err)
		tr.Setup.Held, said = given, nil
		better, err := tr.report(t.Context(), &said)
		if err != nil || better || !math.IsNaN(tr.ValLoss) || !strings.Contains(strings.Join(said, "\n"), "nothing to validate: no token of the held-out text is learnt; hint: ") {
			t.Errorf("%s: validation: %v, loss %v, %q", name, err, tr.ValLoss, said)
		}
		if text, err := json.Marshal(tr.Summary()); err != nil || strings.Contains(string(text), "val_loss") {
			t.Errorf("%s: summary %s: %v", name, text, err)
		}
		tr.sampler, err = data.NewSampler(given, 1, 4)
		check(t, err)
		if _, err := tr.Next(t.Context()); !errors.Is(err, config.ErrConfig) || !strings.Contains(err.Error(), "step 1: no token of the text is learnt") {
			t.Errorf("%s: training: %v", name, err)
		}
	}
	some, err := tokens.Windows(data.Range{First: (tokens.Len() - 1) % 32, End: tokens.Len()}, 32)
	check(t, err)
	tr.Setup.Train = some
	tr.sampler, err = data.NewSampler(some, 1, 1)
	check(t, err)
	tr.Setup.Spec.GlobalBatch, tr.rows = 1, tr.rows[:33]
	before, targets, passed, err := tr.draw()
	if err != nil || targets == 0 || passed == 0 || before == (data.Cursor{}) {
		t.Errorf("one window has an answer: %v, %d targets, %d passed over", err, targets, passed)
	}
	tr.Setup.Spec.GlobalBatch, tr.rows = 4, tr.rows[:4*33]
	tr.Setup.Train = all
	tr.Setup.Held, tr.sampler = held, train
	check(t, errors.Join(tr.Train(t.Context(), &said), tr.Close()))
	if !stat.Finite(tr.ValLoss) || tr.Step != 1 {
		t.Errorf("step %d, loss %v", tr.Step, tr.ValLoss)
	}
	f, err := folder.Open(tr.Summary().Checkpoint)
	check(t, err)
	defer f.Close()
	row := make([]int32, 33)
	given.Copy(row, 0)
	if _, err := folder.Evaluate(t.Context(), f, [][]int32{row}, false, false); !errors.Is(err, folder.ErrMisuse) || !strings.Contains(err.Error(), "nothing to evaluate") {
		t.Errorf("eval: %v", err)
	}
}

// TestValidationNotFinite: weights that an update has broken are not reported as a loss, and not saved as the run's result.
func TestValidationNotFinite(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	tr, _ := openRun(t, runConfig(t, t.TempDir()), "max_steps=1")
	for i, p := range tr.Setup.Graph.Params {
		if p.Name == "model.norm.weight" {
			check(t, tr.Session.Write(i, optimizer.Weights, slices.Repeat([]float32{float32(math.NaN())}, p.Cols)))
		}
	}
	tr.Step = 1 // no step is left, which would find it first
	var said events
	if err := tr.Train(t.Context(), &said); !errors.Is(err, folder.ErrNumeric) || !strings.Contains(err.Error(), "step 1: the validation loss is NaN") || !strings.Contains(err.Error(), "hint: ") || tr.saved != "" {
		t.Errorf("%v, saved %q, said %q", err, tr.saved, said)
	}
	check(t, tr.Close())
}
