package planner

import (
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
)

// TestNetworkOrder: a plan for hosts with fast links inside and a slow network between them is at most as fast as one for fast
// links everywhere, and faster than one for the network everywhere.
func TestNetworkOrder(t *testing.T) {
	g, err := graph.Build(tiny(t), 16, graph.F32)
	check(t, err)
	seconds := func(h config.Hardware) float64 {
		c := config.Default()
		h.Name = "a100-80"
		c.GlobalBatch, c.SequenceLength, c.Precision, c.Ranks, c.Hardware, c.Plan.Sequence = 8, 16, "fp32", 4, h, 1
		spec, err := job.Settle(config.ToPlan, &c, func(string) {})
		check(t, err)
		m, err := machine.Describe(spec.Machine(), func(string) {})
		check(t, err)
		r, err := (&Task{Machine: m, Graph: g, Spec: spec}).PlanAny(t.Context(), func(string) {})
		check(t, err)
		return r.Fastest()
	}
	const slow = 10e6 // bytes/s
	fast, both, network := seconds(config.Hardware{Hosts: 1}), seconds(config.Hardware{Hosts: 2, Network: slow}), seconds(config.Hardware{Hosts: 1, Peers: slow})
	if !(fast < both && both < network) {
		t.Errorf("a step takes %v s on one host, %v on two and %v if all links are slow", fast, both, network)
	}
}
