package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/train"
)

// TestEarlyStop: a run ends at the validation that is the last of so many without a lower loss, whether or not it was
// stopped in between; started again, it does nothing more.
func TestEarlyStop(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	var ends [2]trained
	for i, first := range []string{"max_steps=40", "max_steps=6"} {
		_, file := tiny(t, "eval_every: 1", "early_stop: 3", "keep_best: true")
		call("train", file, "--json", "learning_rate=3", first).must(t, 0)
		call("train", file, "--json", "learning_rate=3", "max_steps=40").must(t, 0).into(t, &ends[i])
		if out := call("train", file, "learning_rate=3", "max_steps=40").must(t, 0).stdout; !strings.Contains(out, "no steps were left") {
			t.Error(out)
		}
	}
	if ends[0].Steps >= 40 || ends[0].Steps != ends[1].Steps || ends[0].Best.Step+3 != int64(ends[0].Steps) {
		t.Errorf("the run ends at step %d, and stopped in between at %d; the best step is %d", ends[0].Steps, ends[1].Steps, ends[0].Best.Step)
	}
	_, file := tiny(t)
	call("train", file, "early_stop=2").must(t, 2, "early_stop", "eval_every", "hint:")
	call("train", file, "schedule=wsd", "decay_steps=0").must(t, 2, "decay_steps", "hint:")
	call("train", file, "decay_steps=2").must(t, 2, "decay_steps", "set schedule: wsd")
	call("train", file, "schedule=wds").must(t, 2, "wsd")
}

// TestBitsPerByte: bits per byte are the nats of all targets over the bytes of text that these stand for, in training and
// evaluation.
func TestBitsPerByte(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 2", "eval_every: 1")
	run := call("train", file, "--json").must(t, 0, "bits per byte").object(t)
	if run["val_bits_per_byte"] == nil {
		t.Errorf("%v", run)
	}
	var rows [][]int32
	tokenizer, err := bpe.Load(dir + "/run/checkpoint-2/tokenizer.json")
	check(t, err)
	text, err := os.ReadFile(dir + "/corpus.txt")
	check(t, err)
	ids := tokenizer.Encode(text[:4096])
	rows = append(rows, ids[:33])
	end, _ := tokenizer.EndOfText()
	rows[0][20] = end // which is predicted, but is no text
	tokens, err := json.Marshal(rows)
	check(t, err)
	check(t, os.WriteFile(dir+"/tokens.json", tokens, 0o600))
	decoded, err := tokenizer.Decode(append(append([]int32{}, rows[0][1:20]...), rows[0][21:]...))
	check(t, err)
	e := call("eval", dir+"/run/checkpoint-2", "--tokens", dir+"/tokens.json", "--json").must(t, 0).object(t)
	want := e["loss"].(float64) * 32 / math.Ln2 / float64(len(decoded))
	if got := e["bits_per_byte"].(float64); math.Abs(got-want) > 1e-9 {
		t.Errorf("%v bits per byte, want %v", got, want)
	}
	check(t, os.Remove(dir+"/run/checkpoint-2/tokenizer.json"))
	if out := call("eval", dir+"/run/checkpoint-2", "--tokens", dir+"/tokens.json").must(t, 0).stdout; !strings.Contains(out, "perplexity") || strings.Contains(out, "per byte") {
		t.Error(out)
	}
	metrics, err := os.ReadFile(dir + "/run/metrics.jsonl")
	check(t, err)
	var m train.Metrics
	check(t, json.Unmarshal([]byte(strings.SplitN(string(metrics), "\n", 2)[0]), &m))
	if m.ValLoss == 0 || m.BitsPerByte == 0 || fmt.Sprint(m.BitsPerByte) == fmt.Sprint(m.ValLoss) {
		t.Errorf("%+v", m)
	}
}
