package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/train"
)

// toTrainOn makes a folder with a model, and a configuration that trains it on with more keys.
func toTrainOn(t *testing.T, lines ...string) (dir, file string) {
	t.Helper()
	dir, file = tiny(t, "max_steps: 4")
	call("train", file, "out="+dir+"/base").must(t, 0)
	text, err := os.ReadFile(file)
	check(t, err)
	text = append(text[:bytes.Index(text, []byte("max_steps"))], fmt.Sprintf("eval_batches: 1\nmodel: %s/base/checkpoint-4\n%s\n", dir, strings.Join(lines, "\n"))...)
	text = bytes.Replace(text, []byte("tokenizer: bpe-300\n"), nil, 1)
	check(t, os.WriteFile(file, text, 0o644))
	return dir, file
}

// chosen reads what a run's folder says about what it trains.
func chosen(t *testing.T, dir string) (c train.Chosen) {
	t.Helper()
	text, err := os.ReadFile(dir + "/within.json")
	check(t, err)
	check(t, json.Unmarshal(text, &c))
	return c
}

// TestTrainWithin: what is trained is chosen by trials, once; the run takes the bytes that were planned, which are no more than was
// given; what is not chosen comes out as it went in. A run that is stopped goes on with the same choice, to the same end, even with
// other memory. More memory makes only the trials of what did not fit before.
func TestTrainWithin(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := toTrainOn(t, "max_steps: 100", "train_within: 340000", "gradient_clipping: 0")
	run := dir + "/run"
	if r := call("plan", file).must(t, 0); !strings.Contains(r.stdout, "nothing has been measured yet") {
		t.Errorf("%s", r.stdout)
	}
	call("train", file, "out="+dir+"/whole").must(t, 0, "trial")
	check(t, os.MkdirAll(run, 0o755))
	whole := chosen(t, dir+"/whole")
	killed, left := whole, slices.IndexFunc(whole.Groups, func(g group) bool { return g.Tried })
	killed.Groups = slices.Clone(whole.Groups) // as if the process had ended before this trial
	killed.Groups[left].Gain, killed.Groups[left].Tried, killed.Groups[left].Chosen = 0, false, false
	killed.Done = false
	text, err := json.Marshal(killed)
	check(t, err)
	check(t, os.WriteFile(run+"/within.json", text, 0o644))
	check(t, os.WriteFile(run+"/stop", nil, 0o644))
	stopped := call("train", file, "--json").must(t, 75, "trial")
	if stopped.object(t)["chosen"] == nil || strings.Count(stopped.stderr, "what training") != 1 {
		t.Errorf("the run does not say what it trains, or tries again what was tried: %s%s", stopped.stdout, stopped.stderr)
	}
	first := chosen(t, run)
	if !reflect.DeepEqual(first.Groups, whole.Groups) {
		t.Errorf("trials that were broken off give other gains: %v and %v", first.Groups, whole.Groups)
	}
	if first.Steps < 1 || first.Bytes > first.Limit || first.Whole <= first.Limit || first.Achieved == 0 {
		t.Errorf("%+v", first)
	}
	rest := call("train", file, "train_within=350000").must(t, 0, "resuming")
	if strings.Contains(rest.stderr, "trial") || chosen(t, run).Limit != first.Limit {
		t.Error("with other memory, a run that goes on chooses anew")
	}
	sameRun(t, run, dir+"/whole", 100)
	var planned, reached int64
	line := rest.stdout[strings.Index(rest.stdout, "device memory: planned"):]
	_, err = fmt.Sscanf(line, "device memory: planned %d bytes, reached %d", &planned, &reached)
	check(t, err)
	if planned != reached || planned > first.Limit {
		t.Errorf("planned %d bytes, reached %d, given %d", planned, reached, first.Limit)
	}
	before, after := tensors(t, dir+"/base/checkpoint-4", "model"), tensors(t, run+"/checkpoint-100", "model")
	for _, g := range first.Groups {
		for _, name := range g.Params {
			if bytes.Equal(before[name], after[name]) == g.Chosen {
				t.Errorf("%s: chosen %v", name, g.Chosen)
			}
		}
	}
	if r := call("plan", run).must(t, 0); !strings.Contains(r.stdout, "train_within: what is chosen takes at least") {
		t.Errorf("a run's folder is planned without what it trains: %s", r.stdout)
	}
	check(t, os.Rename(run+"/within.json", run+"/gone.json"))
	call("train", file, "max_steps=102").must(t, 2, "it is not known what the run trains", "hint:")
}

// TestTrainWithinRefused: too little memory names what would do, and has the exit code of what does not fit; too much is refused;
// enough for everything trains everything, without trials; what excludes it is named.
func TestTrainWithinRefused(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := toTrainOn(t, "max_steps: 100", "train_within: 100000")
	r := call("train", file).must(t, 3, "does not fit", "hint: set train_within=")
	var least int64
	at := strings.Index(r.stderr, "hint: set train_within=")
	_, err := fmt.Sscanf(r.stderr[at:], "hint: set train_within=%d,", &least)
	check(t, err)
	call("train", file, fmt.Sprint("train_within=", least-1), "--dry-run").must(t, 3)
	call("plan", file, fmt.Sprint("train_within=", least)).must(t, 0)
	call("plan", file, "train_within=100TiB").must(t, 2, "train_within", "of device memory; hint:")
	call("train", file, "train_within=100MiB", "max_steps=1", "--dry-run").must(t, 2, "a tenth of the run's 1 steps", "hint:")
	all := call("train", file, "train_within=100MiB", "--dry-run").must(t, 0)
	if strings.Contains(all.stderr, "trial") || !strings.Contains(all.stdout, "everything is trained, since that fits") {
		t.Errorf("%s%s", all.stderr, all.stdout)
	}
	for _, other := range []string{`freeze="*.v_proj.weight"`, "lora={rank: 2}", `quantize=nf4 freeze="*v_proj.weight"`, "preference={beta: 0.1}", "ranks=2", "plan={micro_batch: 1}", "keep_mask=true",
		"model={type: llama, layers: 2, width: 32, heads: 4} tokenizer=bpe-300", "max_steps=null max_time=1m", "carry_optimizer=true"} {
		call(append([]string{"train", file}, splitKeys(other)...)...).must(t, 2, "train_within", "hint:")
	}
	call("plan", file, "train_within=none").must(t, 2, "nothing can be trained in no memory", "hint:")
}

// splitKeys splits overrides at spaces that are not within braces.
func splitKeys(text string) (list []string) {
	depth, from := 0, 0
	for i, r := range text {
		switch r {
		case '{':
			depth++
		case '}':
			depth--
		case ' ':
			if depth == 0 {
				list, from = append(list, text[from:i]), i+1
			}
		}
	}
	return append(list, text[from:])
}

// TestQuarterMebibyte: whole training steps of a small model run within 256 KiB of device memory, to the byte as planned, with all its
// parameters trained: with weights in int8 those of larger ones, which need nearly twice that in fp32; and so do those of a trained model whose weights alone take three quarters of that, of which what fits is trained.
func TestQuarterMebibyte(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const most = 256 << 10
	within := func(r result) {
		t.Helper()
		var planned, reached int64
		_, err := fmt.Sscanf(r.stdout[strings.Index(r.stdout, "device memory: planned"):], "device memory: planned %d bytes, reached %d", &planned, &reached)
		check(t, err)
		if planned != reached || planned > most {
			t.Errorf("planned %d bytes, reached %d, of %d", planned, reached, most)
		}
	}
	dir, file := tiny(t, "max_steps: 3", "gradient_clipping: 0", "limits: {device: 256KiB}", "plan: {weights: device, grads: device, state: device}",
		"model: {type: llama, layers: 2, width: 16, heads: 2}")
	within(call("train", file, "global_batch=1").must(t, 0))
	within(call("train", file, "global_batch=1", "out="+dir+"/int8", "model.width=32", "precision=int8", "optimizer=lion", "optimizer_state=bf16_moments").must(t, 0))
	within(call("train", file, "global_batch=1", "out="+dir+"/sgd", "model.width=48", "precision=int8", "optimizer=sgd").must(t, 0))
	call("train", file, "global_batch=1", "out="+dir+"/fp32", "model.width=32").must(t, 3, "does not fit")
	_, file = toTrainOn(t, "max_steps: 100", "gradient_clipping: 0", "train_within: 256KiB")
	within(call("train", file, "sequence_length=16", "global_batch=2").must(t, 0, "trial"))
	within(call("train", file, "sequence_length=16", "global_batch=2", "precision=int8", "optimizer_state=bf16_moments", "train_within=128KiB", "out="+dir+"/chosen").must(t, 0, "trial"))
}
