package main

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestJSON: with --json every verb prints one object with the fields that
// scripts rely on, and nothing else.
func TestJSON(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	tokens := dir + "/tokens.json"
	check(t, os.WriteFile(tokens, []byte("[[1,2,3,4],[5,6,7,8]]"), 0o644))
	const planned = "fits step_seconds tokens_per_second mfu ranks peaks.device peaks.host peaks.disk capacity.device capacity.host " +
		"capacity.disk bytes.h2d bytes.d2h bytes.disk_read bytes.disk_write bytes.network plan.micro_batch"
	for _, c := range []struct{ args, want string }{
		{"plan " + file, planned + " runners_up"},
		{"plan " + file + " limits.device=1KiB", "fits largest hint"},
		{"train " + file + " --dry-run", planned},
		{"train " + file, planned + " steps train_loss val_loss measured_step_seconds measured_peaks.device measured_peaks.host " +
			"measured_peaks.disk measured_bytes.h2d measured_bytes.disk_read checkpoint"},
		{"eval " + dir + "/run/checkpoint-4 " + dir + "/corpus.txt --sequence 32", "loss perplexity tokens"},
		{"eval " + dir + "/run/checkpoint-4 --tokens " + tokens, "loss perplexity tokens"},
		{"generate " + dir + "/run/checkpoint-4 --prompt gold --max-tokens 5", "text prompt_tokens tokens prompt_seconds seconds context_full"},
		{"prune " + dir + "/run/checkpoint-4 " + dir + "/sparse --sparsity 0.5 --data " + dir + "/corpus.txt --sequence 32", "folder sparsity method tokens zeros weights layers"},
		{"data " + file, "files formats documents bytes tokens tokenizer vocabulary unigram_entropy sample"},
		{"data " + dir + "/*.txt --tokenizer bpe-300", "files tokens sample"},
		{"doctor", "ok findings"},
		{"probe --disk " + dir + " --out " + dir + "/hardware.json", "name cores memory.device engines links"},
		{"simulate " + file, "step_seconds instructions busy.compute critical bytes.h2d peaks.device live.device"},
		{"draw " + file + " --out " + dir + "/a.html", "file"},
	} {
		code := 0
		if strings.Contains(c.args, "1KiB") {
			code = 3
		}
		run := call
		if strings.HasPrefix(c.args, "probe ") {
			run = func(args ...string) result { return callAlone(t, args...) }
		}
		object := run(append(strings.Fields(c.args), "--json")...).must(t, code).object(t)
		for _, field := range strings.Fields(c.want) {
			if !has(object, strings.Split(field, ".")) {
				t.Errorf("athanor %s --json has no %s: %v", c.args, field, object)
			}
		}
	}
	f, err := os.Open(dir + "/run/metrics.jsonl")
	check(t, err)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var line map[string]any
		check(t, json.Unmarshal(s.Bytes(), &line))
		for _, field := range strings.Fields("step tokens loss learning_rate grad_norm step_seconds predicted_step_seconds tokens_per_second mfu") {
			if !has(line, []string{field}) {
				t.Errorf("metrics.jsonl has no %s: %v", field, line)
			}
		}
	}
}

// has reports whether an object has a field, at a path.
func has(v any, path []string) bool {
	for _, name := range path {
		object, ok := v.(map[string]any)
		if !ok {
			return false
		}
		if v, ok = object[name]; !ok {
			return false
		}
	}
	return true
}

// TestPeople: without --json the verbs tell people what they did, and the
// files that they name are there and are what they say.
func TestPeople(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 4", "sample: {prompt: the old, tokens: 4}")
	for _, c := range []struct {
		args string
		want []string
	}{
		{"plan " + file + " --explain --out " + dir + "/plan.json --dump " + dir + "/step.txt", []string{"recomputed", "predicted:", "bytes, exactly", "runners-up:"}},
		{"train " + file, []string{"validation loss", "unigram entropy", "predicted", "checkpoint-4", "sample:\nthe old"}},
		{"simulate " + file + " --trace " + dir + "/trace.json", []string{"compute", "longest chain", "moved:"}},
		{"draw " + file + " --out " + dir + "/t.svg", []string{"t.svg"}},
		{"draw " + file + " --out " + dir + "/m.svg --view device", []string{"m.svg"}},
		{"draw " + file + " --out " + dir + "/a.html", []string{"a.html"}},
		{"data " + file, []string{"text: 1 files", "of bpe-300 (vocabulary 300)", ".\\n]\n"}},
		{"probe --disk " + dir + " --out " + dir + "/hardware.json", []string{"GFLOP/s", "host to device"}},
		{"doctor --path " + dir, []string{"processor", "memory", "disk"}},
		{"eval " + dir + "/run/checkpoint-4 " + dir + "/corpus.txt", []string{"perplexity"}},
		{"generate " + dir + "/run/checkpoint-4 --prompt the --temperature 0 --max-tokens 3", []string{"the"}},
	} {
		run := call
		if strings.HasPrefix(c.args, "probe ") {
			if testkit.AtLevel() < testkit.All { // it takes ten seconds, and TestJSON probes too
				continue
			}
			run = func(args ...string) result { return callAlone(t, args...) }
		}
		r := run(strings.Fields(c.args)...).must(t, 0)
		for _, w := range c.want {
			if !strings.Contains(r.stdout, w) {
				t.Errorf("athanor %s does not say %q:\n%s", c.args, w, r.stdout)
			}
		}
	}
	for name, want := range map[string][]string{
		"plan.json": {`"activations"`}, "step.txt": {"compute"}, "t.svg": {"<svg", "</svg>"}, "m.svg": {"<svg", "</svg>"},
		"a.html": {"<html", "<svg", "</html>"}, "trace.json": {`"ph":"X"`, "predicted"},
		"run/trace.json": {"predicted", "measured at step 2"}, "run/config.yaml": {"learning_rate"}, "run/plan.json": {`"micro_batch"`},
	} {
		text, err := os.ReadFile(dir + "/" + name)
		check(t, err)
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("%s has no %q", name, w)
			}
		}
		if strings.HasSuffix(name, ".json") && !json.Valid(text) {
			t.Errorf("%s is no JSON", name)
		}
	}
	call("doctor", "--path", dir+"/absent").must(t, 1, "hint:")
	call("train", dir+"/run/config.yaml", "max_steps=4").must(t, 0, "resuming "+dir+"/run/checkpoint-4") // it is a configuration
	if again := call("train", file).must(t, 0).stdout; !strings.Contains(again, "no steps were left to train: 4 are done; hint:") || strings.Contains(again, "measured") {
		t.Errorf("a run that has ended says it was measured:\n%s", again)
	}
}

// TestTraceAddsUp: the measured step of trace.json has every instruction of
// the predicted one.
func TestTraceAddsUp(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 3", "limits: {device: 200KiB}")
	call("train", file).must(t, 0)
	text, err := os.ReadFile(dir + "/run/trace.json")
	check(t, err)
	var events []struct {
		Name, Ph string
		PID      int
		Dur      float64
	}
	check(t, json.Unmarshal(text, &events))
	var names [2][]string
	for _, e := range events {
		if e.Ph == "X" {
			names[e.PID] = append(names[e.PID], e.Name)
		}
		if e.Dur < 0 {
			t.Errorf("%s took %v", e.Name, e.Dur)
		}
	}
	if len(names[0]) == 0 || !slices.Equal(names[0], names[1]) {
		t.Errorf("%d instructions predicted, %d measured", len(names[0]), len(names[1]))
	}
}
