package planner

import (
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
)

// TestMatricesShared: two ranks with one sequence share the matrices where their link is fast, but not where the sums would take too
// long.
func TestMatricesShared(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	known, err := family.Known("llama-2-7b")
	check(t, err)
	m := *known
	m.Layers = 2
	chosen := func(peers float64) *plan.Plan {
		t.Helper()
		c := config.Default()
		c.GlobalBatch, c.SequenceLength, c.Precision, c.Ranks = 1, 2048, "bf16", 2
		c.Hardware.Name, c.Hardware.Peers = "a100-80", config.Rate(peers)
		spec, err := job.Settle(config.ToPlan, &c, func(string) {})
		check(t, err)
		g, err := BuildGraph(spec, &m, nil)
		check(t, err)
		described, err := machine.Describe(spec.Machine(), func(string) {})
		check(t, err)
		r, err := (&Task{Machine: described, Graph: g, Spec: spec}).PlanAny(t.Context(), func(string) {})
		check(t, err)
		return r.Best.Plan
	}
	if pl := chosen(0); pl.Sharers() != 2 {
		t.Errorf("ranks with a fast link do not share matrices: %+v", pl)
	}
	if pl := chosen(1e6); pl.Sharers() > 1 {
		t.Error("ranks with a slow link share matrices")
	}
}
