package main

import (
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestPrefixes: messages say once where something is wrong, and once what to do.
func TestPrefixes(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	write := func(name, text string) string {
		check(t, os.MkdirAll(dir+"/m", 0o755))
		check(t, os.WriteFile(dir+"/"+name, []byte(text), 0o644))
		return dir + "/" + name
	}
	cut := write("cut.json", "{")
	write("m/config.json", `{"model_type": "gpt2", "n_layer": -1}`)
	write("m/tokenizer.json", "{")
	for _, args := range [][]string{
		{"plan", file, "tokenizer=" + cut},
		{"plan", file, "tokenizer=absent"},
		{"plan", file, "tokenizer=bpe-3"},
		{"plan", file, "tokenizer=" + dir + "/m"},
		{"plan", file, "model=" + dir + "/m"},
		{"plan", file, "model=" + file},
		{"plan", file, "model={type: gpt2, layers: 2, width: 32, heads: 4, kv_heads: 3}"},
		{"plan", file, "hardware.name=" + cut},
		{"plan", file, "data=absent"},
		{"data", "absent"},
		{"data", dir + "/["},
		{"data", dir + "/corpus.txt", "--tokenizer", cut},
		{"data", write("cut.jsonl", "{")},
		{"eval", dir + "/m", file},
		{"train", file, "resume=" + dir},
	} {
		r := call(args...)
		what, _, _ := strings.Cut(r.stderr, "hint:")
		parts := strings.Split(what, ": ")
		for i, part := range parts {
			for _, later := range parts[i+1:] {
				if later == part || strings.HasPrefix(later, part+" ") {
					t.Errorf("athanor %v: %s twice: %s", args, part, r.stderr)
				}
			}
		}
		if r.code == 0 || strings.Count(r.stderr, "hint:") != 1 {
			t.Errorf("athanor %v: exit code %d, or not one hint: %s", args, r.code, r.stderr)
		}
	}
	check(t, os.MkdirAll(dir+"/broken/state", 0o755))
	call("train", file, "resume="+dir+"/broken", "limits.device=1").must(t, 1, "no DONE") // before a plan is searched
}
