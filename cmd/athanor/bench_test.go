package main

import (
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/bench"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestBenchStep: a step of a known model has the operators of the optimizer that is named.
func TestBenchStep(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, name := range []string{"adamw", "lion", "muon"} {
		var r stepReport
		call("bench", "step", "gpt2", "--layers=1", "--width=32", "--heads=2", "--vocabulary=64", "--batch=1", "--sequence=8", "--steps=1", "--optimizer="+name, "--json").must(t, 0).into(t, &r)
		if !slices.ContainsFunc(r.Operators, func(o bench.OpTime) bool { return o.Name == name }) {
			t.Errorf("%s: the step has only %v", name, r.Operators)
		}
	}
	call("bench", "step", "gpt2", "--optimizer=sparkle").must(t, 2, "is not one of adamw", "muon")
}
