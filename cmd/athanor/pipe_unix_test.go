//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestPipes: where a file is expected and a pipe is found that nobody writes into, nothing waits for ever: it is an error that names it, or
// what the pipe replaced was not needed.
func TestPipes(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	base, file := modelFolder(t, "model: {type: llama, layers: 1, width: 16, heads: 2}")
	dir := t.TempDir()
	text, pipe := dir+"/text.txt", dir+"/pipe"
	corpus(t, text, 100)
	check(t, unix.Mkfifo(pipe, 0o600))
	prompts, run := dir+"/prompts.jsonl", dir+"/run" // a run whose folder of tokenizers is a pipe
	check(t, os.WriteFile(prompts, []byte(`{"prompt": "a"}`), 0o644))
	check(t, os.Mkdir(run, 0o755))
	check(t, unix.Mkfifo(run+"/tokenizer", 0o600))
	within := func(name string, codes []int, args ...string) {
		t.Helper()
		ended := make(chan result, 1)
		go func() { ended <- callHere(args...) }()
		select {
		case r := <-ended:
			if r.code < codes[0] || r.code > codes[1] {
				t.Errorf("%s: exit code %d: %s", name, r.code, r.stderr)
			}
			if r.code != 0 {
				r.must(t, r.code, "pipe", "hint: ")
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: it waits", name)
		}
	}
	refused := []int{1, 2}
	files, err := filepath.Glob(base + "/*")
	check(t, err)
	for _, path := range files {
		name, codes := filepath.Base(path), []int{0, 2}
		switch name {
		case "config.json", "tokenizer.json", "model.safetensors":
			codes = refused
		}
		other := filepath.Join(t.TempDir(), "pipe-in-folder")
		check(t, os.CopyFS(other, os.DirFS(base)))
		check(t, os.RemoveAll(other+"/"+name))
		check(t, unix.Mkfifo(other+"/"+name, 0o600))
		within(name, codes, "eval", other, text, "--sequence", "8")
	}
	for name, args := range map[string][]string{
		"text":          {"eval", base, pipe, "--sequence", "8"},
		"tokens":        {"eval", base, "--tokens", pipe},
		"prompts":       {"generate", base, "--prompts", pipe, "--out", dir + "/out.jsonl"},
		"texts":         {"generate", base, "--prompts", prompts, "--out", pipe},
		"golden":        {"golden", "check", pipe},
		"tokenizers":    {"train", file, "model=null", "model.type=llama", "model.layers=1", "model.width=16", "model.heads=2", "tokenizer=bpe-300", "data=" + text, "out=" + run},
		"configuration": {"plan", pipe},
		"plan":          {"plan", file, "plan=" + pipe},
		"hardware":      {"plan", file, "hardware.name=" + pipe},
		"data":          {"plan", file, "data=" + pipe},
	} {
		within(name, refused, args...)
	}
}
