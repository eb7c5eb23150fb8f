package main

import (
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestDrawRun: a run's folder is drawn by the plan that it has, which is not searched for again, and every box of the
// memory map says what it holds.
func TestDrawRun(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	call("train", file, "max_steps=1", "plan.micro_batch=1", "plan.recompute=full").must(t, 0)
	r := call("draw", dir+"/run").must(t, 0)
	if strings.Contains(r.stderr, "planning") || !strings.Contains(r.stdout, "wrote "+dir+"/run/step.html") {
		t.Errorf("it says %s and %s", r.stdout, r.stderr)
	}
	page, err := os.ReadFile(dir + "/run/step.html")
	check(t, err)
	for _, word := range []string{"Athanor: " + dir + "/run", "<title>weights ", "(linear, fwd segment 1 micro-batch 0)"} {
		if !strings.Contains(string(page), word) {
			t.Errorf("the page has no %q", word)
		}
	}
	if text := call("plan", dir+"/run").must(t, 0).stdout; !strings.HasPrefix(text, "plan: the given plan") {
		t.Errorf("the plan of a run is %s", text)
	}
	call("draw", file).must(t, 2, "hint: add --out")
}
