package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// documents writes JSONL with documents of every length from one letter to several
// windows of the tiny run's, and empty ones.
func documents(t *testing.T, path string) {
	t.Helper()
	var text strings.Builder
	for i := range 400 {
		fmt.Fprintf(&text, "{\"text\": %q}\n", strings.Repeat("gold, silver and sulphur; ", i%17)+"mercury"[:i%8])
	}
	check(t, os.WriteFile(path, []byte(text.String()), 0o644))
}

// TestSeparateDocuments: training with attention confined to documents gives the same losses under another
// budget, resumed, and as a pipeline in one direction; its checkpoint is evaluated by the same rule.
func TestSeparateDocuments(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "documents: separate", "max_steps: 6", "model: {type: llama, layers: 2, width: 32, heads: 4, kv_heads: 2, tied: false}")
	documents(t, dir+"/corpus.jsonl")
	train := func(name string, overrides ...string) {
		call(append([]string{"train", file, "data=" + dir + "/corpus.jsonl", "out=" + dir + "/" + name}, overrides...)...).must(t, 0)
	}
	train("plain")
	train("small", "plan={weights: host, micro_batch: 1, recompute: full}")
	train("resumed", "max_steps=3", "plan.micro_batch=1")
	train("resumed")
	train("pipeline", "ranks=2", "plan.pipeline=2", "plan.schedule=zb-h1")
	train("joined", "documents=joined")
	for _, name := range []string{"small", "resumed", "pipeline"} {
		sameRun(t, dir+"/"+name, dir+"/plain", 6)
	}
	if slices.Equal(losses(t, dir+"/joined"), losses(t, dir+"/plain")) {
		t.Error("separate documents make no difference")
	}
	folder := dir + "/plain/checkpoint-6"
	eval := func(flags ...string) string {
		return call(append([]string{"eval", folder, dir + "/corpus.jsonl"}, flags...)...).must(t, 0).stdout
	}
	if eval() == eval("--separate") {
		t.Error("separate documents make no difference to eval")
	}
	call("generate", folder, "--prompt", "gold", "--max-tokens", "5").must(t, 0)
	call("train", file, "data="+dir+"/corpus.jsonl", "out="+dir+"/joined").must(t, 2, "documents is joined there and separate here", "hint:")
}

// TestNoEndOfText: a tokenizer that cannot say where documents end is a fault of the
// configuration, and following the hint helps.
func TestNoEndOfText(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1")
	call("train", file).must(t, 0)
	folder := dir + "/run/checkpoint-1"
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		text, err := os.ReadFile(folder + "/" + name)
		check(t, err)
		other := strings.ReplaceAll(string(text), "<|endoftext|>", "<the end>")
		other = strings.Replace(other, `"eos_token"`, `"no_token"`, 1)
		check(t, os.WriteFile(folder+"/"+name, []byte(other), 0o644))
	}
	for _, documents := range []string{"joined", "separate"} {
		call("train", file, "tokenizer="+folder, "documents="+documents, "out="+dir+"/never").must(t, 2, "run.yaml:", "tokenizer:", "no end-of-text token", "hint:", "eos_token")
	}
	call("eval", folder, dir+"/corpus.txt", "--separate").must(t, 1, "no end-of-text token", "eos_token")
	check(t, os.WriteFile(folder+"/tokenizer_config.json", []byte(`{"eos_token": "<the end>"}`), 0o644))
	call("train", file, "tokenizer="+folder, "documents=separate", "out="+dir+"/other").must(t, 0)
	call("eval", folder, dir+"/corpus.txt", "--separate").must(t, 0)
	check(t, os.Remove(folder+"/tokenizer.json"))
	call("eval", folder, "--tokens", dir+"/none.json", "--separate").must(t, 1, "has no tokenizer", "copy its tokenizer.json")
	call("train", file, "model="+folder, "tokenizer="+folder, "out="+dir+"/never").must(t, 2, "tokenizer:", "hint:")
}
