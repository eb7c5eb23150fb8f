package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestEvalTextField: eval reads the field of rows that the model was trained on, or the one that is named, and counts the rows that it leaves out.
func TestEvalTextField(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1", "validation_fraction: 0.05", "eval_batches: 1")
	text, err := os.ReadFile(dir + "/corpus.txt")
	check(t, err)
	var rows, other strings.Builder
	for line := range strings.Lines(string(text)) {
		fmt.Fprintf(&rows, "{\"content\": %q}\n", line)
		fmt.Fprintf(&other, "{\"body\": %q}\n", line)
	}
	named, elsewhere := dir+"/named.jsonl", dir+"/elsewhere.jsonl"
	check(t, os.WriteFile(named, []byte(rows.String()), 0o644))
	check(t, os.WriteFile(elsewhere, []byte(other.String()+"{\"neither\": 1}\n"), 0o644))

	var got trained
	call("train", file, "data="+named, "text_field=content", "--json").must(t, 0).into(t, &got)
	want := call("eval", got.Checkpoint, named).must(t, 0).stdout
	call("eval", got.Checkpoint, elsewhere).must(t, 2, `no "content"`, "--text-field")
	call("eval", got.Checkpoint, elsewhere, "--text-field", "body").must(t, 2, `no "body"`)
	r := call("eval", got.Checkpoint, elsewhere, "--text-field", "text,body", "--skip-bad").must(t, 0, "1 rows are bad and left out")
	if r.stdout != want {
		t.Errorf("the same text under another name: %s, want %s", r.stdout, want)
	}
	call("data", named, "--text-field", "content").must(t, 0)
}
