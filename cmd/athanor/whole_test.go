package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestWholeDocuments: what windows hold is reported, a run resumes with the same rule and no other, and users who cut
// answers from questions are told so.
func TestWholeDocuments(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 2", "documents: whole")
	var lines strings.Builder
	for i := range 120 {
		fmt.Fprintf(&lines, "{\"prompt\": \"%s\", \"completion\": \" gold %d\"}\n", strings.Repeat("where? ", 1+i%4), i)
	}
	fmt.Fprintf(&lines, "{\"prompt\": \"%s\", \"completion\": \"no\"}\n", strings.Repeat("why? ", 200))
	check(t, os.WriteFile(dir+"/chats.jsonl", []byte(lines.String()), 0o644))
	data := "data=" + dir + "/chats.jsonl"
	r := call("train", file, data).must(t, 0, "windows of whole documents to train on and 1 to validate with, of which", "% is padding; documents cut, since they have more than 33 tokens: 1", "validation loss")
	if strings.Contains(r.stderr, "set documents: whole") {
		t.Error("who keeps documents whole is told to")
	}
	call("train", file, data, "max_steps=3").must(t, 0, "at step 2")
	call("train", file, data, "max_steps=4", "documents=separate").must(t, 2, "documents is whole (best fit) there")
	call("plan", file, data, "documents=joined").must(t, 0, "set documents: whole to keep them together")
}
