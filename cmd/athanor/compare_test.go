package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestCompare: two plans of a configuration are compared by steps in turn, and their losses are equal; another model has no
// such duty; too few rounds are refused.
func TestCompare(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := tiny(t)
	plan := "plan.micro_batch=1"
	r := call("compare", file, file, plan, "--a", "plan.recompute=full", "--b", "plan.recompute=none", "--rounds", "4", "--json").must(t, 0).object(t)
	if r["same_results"] != true || r["rounds"] != 4.0 || r["low"].(float64) > r["ratio"].(float64) || r["high"].(float64) < r["ratio"].(float64) || r["ratio"].(float64) <= 0 {
		t.Errorf("%v", r)
	}
	if r := call("compare", file, file, plan, "plan.recompute=full", "--b", "model.layers=3", "--rounds", "4", "--json").must(t, 0).object(t); r["same_results"] != false {
		t.Errorf("another model: %v", r)
	}
	if r := call("compare", file, file, plan, "--binary-b", asBinary(t, "bench", "turns", file, plan), "--rounds", "4", "--json").must(t, 0).object(t); r["same_losses"] != true || r["same_results"] != false {
		t.Errorf("another process: %v", r)
	}
	call("compare", file, file, "--binary-a", "/nowhere/athanor").must(t, 2, "/nowhere/athanor", "hint:")
	call("compare", file, file, "--rounds", "3").must(t, 2, "--rounds", "hint:")
}

// asBinary returns a file that runs the program with these arguments, whatever it is given.
func asBinary(t *testing.T, args ...string) string {
	t.Helper()
	text, err := json.Marshal(args)
	check(t, err)
	path := filepath.Join(t.TempDir(), "athanor")
	check(t, os.WriteFile(path, fmt.Appendf(nil, "#!/bin/sh\nexport %s='%s'\nexec %s\n", childArgs, text, os.Args[0]), 0o755))
	return path
}
