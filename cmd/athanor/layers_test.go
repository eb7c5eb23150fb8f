package main

import (
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestDelink: one command trains with layers that share weights, plans anew where each gets its own, and trains on; with --json it
// prints one object. Its folder is an ordinary model's.
func TestDelink(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 4", "tie_layers: 2", "delink_at: 2", "plan: {micro_batch: 4, recompute: none, state: device}")
	r := call("train", file, "--json").must(t, 0, "saved "+dir+"/run/checkpoint-2", "resuming "+dir+"/run/checkpoint-2", "each 2 layers that shared parameters have their own from here on")
	if object := r.object(t); object["steps"] != 4.0 || object["checkpoint"] != dir+"/run/checkpoint-4" {
		t.Errorf("%v", object)
	}
	call("eval", dir+"/run/checkpoint-2", dir+"/corpus.txt", "--sequence", "32").must(t, 0)
}
