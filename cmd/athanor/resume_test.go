package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/train"
)

// TestAnotherRun: that a checkpoint belongs to another run is reported as early as it can be known:
// from the configuration before text is read, from text and model before the machine is measured.
func TestAnotherRun(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1")
	call("train", file).must(t, 0)
	corpus(t, dir+"/other.txt", 900)
	const noText, noMachine = "tokenizer=absent.json", "hardware.h2d=7GB/s" // which nobody has measured
	for _, c := range []struct{ override, without, field string }{
		{"seed=7", noText, "seed is 1 there and 7 here"},
		{"tokenizer=bpe-310", noMachine, "model is vocabulary 300 there and vocabulary 310 here"},
		{"sequence_length=16", noText, "sequence_length"},
		{"global_batch=2", noText, "global_batch"},
		{"precision=bf16", noText, "precision"},
		{"optimizer_state=bf16_moments", noText, "optimizer_state"},
		{"documents=separate", noText, "documents"},
		{"weight_decay=0", noText, "weight_decay"},
		{"gradient_clipping=0", noText, "gradient_clipping"},
		{"beta2=0.99", noText, "adam"},
		{"resume=never", noText, "resume to auto"},
		{"model={type: gpt2, layers: 1, width: 32, heads: 4}", noMachine, "model"},
		{"freeze='*.v_proj.weight'", noMachine, "model"},
		{"data=" + dir + "/other.txt", noMachine, "tokens"},
	} {
		r := call("train", file, "max_steps=2", c.override, c.without).must(t, 2, "resume", c.field, "hint:")
		if strings.Contains(r.stderr, "probing") {
			t.Errorf("%s is told after the machine was measured:\n%s", c.override, r.stderr)
		}
	}
	call("train", file, "seed=7", "resume="+dir+"/run/checkpoint-1", "out="+dir+"/new", noText).must(t, 2, "belongs to another run")
	call("train", file, "max_steps=2").must(t, 0, "checkpoint-1 at step 1")
}

// TestAnotherOut: the configuration that a run leaves, started again with another `out`,
// writes nothing into the folder of the first.
func TestAnotherOut(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1")
	call("train", file, spilled).must(t, 0)
	check(t, os.RemoveAll(dir+"/run/spill"))
	call("train", dir+"/run/config.yaml", "out="+dir+"/second").must(t, 0)
	if _, err := os.Stat(dir + "/second/spill"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir + "/run/spill"); err == nil {
		t.Error("the second run spills to the folder of the first")
	}
}

// TestNamedCheckpoint: a run that begins with a checkpoint of another run resumes from its
// own when it is started again, and never mixes two histories in one folder.
func TestNamedCheckpoint(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 4", "save_every: 2", "keep_checkpoints: 5")
	call("train", file).must(t, 0)
	first, second := dir+"/run/checkpoint-2", dir+"/second"
	from := []string{"train", file, "resume=" + first, "out=" + second}
	call(append(from, "max_steps=6")...).must(t, 0, first+" at step 2")
	call(append(from, "max_steps=8")...).must(t, 0, second+"/checkpoint-6 at step 6")
	before := losses(t, dir+"/run")
	call("train", file, "resume="+first).must(t, 2, "holds "+dir+"/run/checkpoint-4", "hint:") // back in its own folder
	call("train", file, "resume="+second+"/checkpoint-8").must(t, 2, "holds "+dir+"/run/checkpoint-4", "hint:")
	if after := losses(t, dir+"/run"); len(after) != len(before) {
		t.Errorf("metrics of %d steps, there were %d", len(after), len(before))
	}
	call("train", file, "resume="+dir+"/run/checkpoint-4", "max_steps=6").must(t, 0, "checkpoint-4 at step 4") // the latest
}

// TestLargeSeeds: seeds have 64 bits, which are compared to the last one.
func TestLargeSeeds(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := tiny(t, "max_steps: 1", "seed: 18446744073709551615")
	call("train", file).must(t, 0)
	call("train", file, "seed=18446744073709551614").must(t, 2, "seed is 18446744073709551615 there and 18446744073709551614 here")
	call("train", file, "seed=18446744073709551616").must(t, 2, "seed: expected a whole number", "18446744073709551615")
}

// TestTimed: a run that has only a time limit spreads its learning rate over the steps expected in that time, has none left
// when it was over, whatever the plan, and goes on for another time.
func TestTimed(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_time: 300ms")
	call("train", file).must(t, 0)
	c, err := config.Load(dir+"/run/config.yaml", nil)
	check(t, err)
	if c.MaxSteps > 1e6 {
		t.Errorf("the learning rate falls over %d steps", c.MaxSteps)
	}
	first := len(losses(t, dir+"/run"))
	if again := call("train", file, "limits.device=200KiB").must(t, 0); !strings.Contains(again.stdout, "no steps were left to train") {
		t.Errorf("the time was over, but it says:\n%s", again.stdout)
	}
	call("train", file, "max_time=600ms").must(t, 0)
	if more := len(losses(t, dir+"/run")); more <= first {
		t.Errorf("%d steps, then %d", first, more)
	}
}

// TestTimeShapes: where max_time ends a run before its steps are done, the learning rate is at its end by then; where it
// does not, all rates are those of a run without max_time.
func TestTimeShapes(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	rates := func(args ...string) (list []float64) {
		t.Helper()
		dir, file := tiny(t, "max_steps: 60")
		call(append([]string{"train", file, "schedule=cosine", "plan={micro_batch: 1, recompute: full}"}, args...)...).must(t, 0)
		text, err := os.ReadFile(dir + "/run/metrics.jsonl")
		check(t, err)
		for line := range strings.Lines(string(text)) {
			var m struct {
				Rate float64 `json:"learning_rate"`
			}
			check(t, json.Unmarshal([]byte(line), &m))
			list = append(list, m.Rate)
		}
		return list
	}
	if long, all := rates("max_time=1h"), rates(); !slices.Equal(long, all) {
		t.Errorf("with an hour, the rates are %v, without a limit %v", long, all)
	}
	list := rates("max_time=1s", "max_steps=100000000")
	last := list[len(list)-1]
	if last > 0.2e-3 { // it falls from 1e-3 to 1e-4
		t.Errorf("after %d steps, the learning rate is %v", len(list), last)
	}
	for i := 1; i < len(list); i++ {
		if list[i] > list[i-1] {
			t.Errorf("the rate of step %d, %v, is more than that before, %v", i+1, list[i], list[i-1])
		}
	}
}

// TestFinished: a run that has ended is not said to be saved when it is started again.
func TestFinished(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 2")
	call("train", file).must(t, 0, "saved "+dir+"/run/checkpoint-2")
	again := call("train", file).must(t, 0)
	if strings.Contains(again.stderr, "saved ") || !strings.Contains(again.stdout, "no steps were left to train") || !strings.Contains(again.stdout, "checkpoint: "+dir+"/run/checkpoint-2") {
		t.Errorf("nothing was written, but it says:\n%s%s", again.stderr, again.stdout)
	}
	call("train", file, "max_steps=3").must(t, 0, "saved "+dir+"/run/checkpoint-3")
}

// TestSavesByTime: checkpoints are written by time, without a request.
func TestSavesByTime(t *testing.T) {
	dir, file := tiny(t, "max_steps: 3", "save_after: 1ns")
	call("train", file).must(t, 0, "saved "+dir+"/run/checkpoint-1", "saved "+dir+"/run/checkpoint-3")
}

// TestETA: a run ends when its steps are done or its time is over.
func TestETA(t *testing.T) {
	began := time.Now()
	var spec job.Spec
	u := &training{t: &train.Run{Setup: &train.Setup{Spec: &spec}}, began: began, first: 100}
	for _, x := range []struct {
		steps     int
		time, eta time.Duration
	}{{200, 0, 90 * time.Second}, {200, 30 * time.Second, 20 * time.Second}, {110, time.Hour, 0}, {200, time.Second, 0}} {
		spec.MaxSteps, spec.MaxTime = x.steps, config.Duration(x.time)
		if eta := u.eta(110, began.Add(10*time.Second)); eta != x.eta {
			t.Errorf("of %d steps in %v: %v, want %v", x.steps, x.time, eta, x.eta)
		}
	}
}
