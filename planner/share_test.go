package planner

import (
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
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

// TestStreamedMatricesShared: where weights come from the host at each use, over a slow link, two ranks share matrices although each could have
// sequences of its own, since each then fetches half of the weights: that is faster.
func TestStreamedMatricesShared(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	known, err := family.Known("llama-2-7b")
	check(t, err)
	m := *known
	m.Layers, m.Width, m.Heads, m.KVHeads, m.FeedForward, m.Vocab = 2, 2048, 16, 16, 5504, 4096
	c := config.Default()
	c.GlobalBatch, c.SequenceLength, c.Precision, c.Ranks, c.Limits.Device = 4, 1024, "bf16", 2, 350e6
	c.Hardware = config.Hardware{Name: "a100-80", H2D: 4e9, D2H: 4e9}
	spec, err := job.Settle(config.ToPlan, &c, func(string) {})
	check(t, err)
	g, err := BuildGraph(spec, &m, nil)
	check(t, err)
	described, err := machine.Describe(spec.Machine(), func(string) {})
	check(t, err)
	task := &Task{Machine: described, Graph: g, Spec: spec}
	best, err := task.PlanAny(t.Context(), func(string) {})
	check(t, err)
	without, err := task.Plan(t.Context(), func(string) {})
	check(t, err)
	if n := best.Best.Plan.Sharers(); n != 2 || best.Fastest() >= 0.9*without.Fastest() {
		t.Errorf("%d ranks to a matrix: %v s; whole matrices: %v s", n, best.Fastest(), without.Fastest())
	}
}

// TestSharersInPipelines: where hosts have a fast link inside and a slow network between them, ranks of a host share long sequences and hosts
// are the stages of a pipeline, though nobody asked for one: that is faster than if both hosts add up gradients.
func TestSharersInPipelines(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	known, err := family.Known("llama-2-7b")
	check(t, err)
	m := *known
	m.Layers, m.MaxPositions, m.Width, m.Heads, m.KVHeads, m.FeedForward = 2, 1<<15, 2048, 16, 16, 5504
	chosen := func(pipeline int) *search.Result {
		t.Helper()
		c := config.Default()
		c.GlobalBatch, c.SequenceLength, c.Precision, c.Ranks = 4, m.MaxPositions, "bf16", 4
		c.Hardware, c.Plan.Sequence, c.Plan.Pipeline = config.Hardware{Name: "a100-80", Hosts: 2, Network: 1e9}, 2, pipeline
		c.Limits.Device = 8 << 30
		spec, err := job.Settle(config.ToPlan, &c, func(string) {})
		check(t, err)
		g, err := BuildGraph(spec, &m, nil)
		check(t, err)
		described, err := machine.Describe(spec.Machine(), func(string) {})
		check(t, err)
		r, err := (&Task{Machine: described, Graph: g, Spec: spec}).PlanAny(t.Context(), func(string) {})
		check(t, err)
		return r
	}
	best, without := chosen(0), chosen(1)
	if pl := best.Best.Plan; pl.Depth() != 2 || best.Fastest() >= 0.9*without.Fastest() {
		t.Errorf("pipelines of %d ranks: %v s; without pipelines %v s", pl.Depth(), best.Fastest(), without.Fastest())
	}
}
