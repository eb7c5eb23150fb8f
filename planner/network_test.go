package planner

import (
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/search"
)

// TestNetworkOrder: a plan for hosts with fast links inside and a slow network between them is at most as fast as one for fast
// links everywhere, and faster than one for the network everywhere. What --explain says of a faster network is what a plan for
// it says.
func TestNetworkOrder(t *testing.T) {
	g, err := graph.Build(tiny(t), 16, graph.F32)
	check(t, err)
	plan := func(h config.Hardware) (*Task, *search.Result) {
		c := config.Default()
		h.Name = "a100-80"
		c.GlobalBatch, c.SequenceLength, c.Precision, c.Ranks, c.Hardware, c.Plan.Sequence = 8, 16, "fp32", 4, h, 1
		spec, err := job.Settle(config.ToPlan, &c, func(string) {})
		check(t, err)
		m, err := machine.Describe(spec.Machine(), func(string) {})
		check(t, err)
		task := &Task{Machine: m, Graph: g, Spec: spec}
		r, err := task.PlanAny(t.Context(), func(string) {})
		check(t, err)
		return task, r
	}
	seconds := func(h config.Hardware) float64 {
		_, r := plan(h)
		return r.Fastest()
	}
	const slow = 10e6 // bytes/s
	fast, both, network := seconds(config.Hardware{Hosts: 1}), seconds(config.Hardware{Hosts: 2, Network: slow}), seconds(config.Hardware{Hosts: 1, Peers: slow})
	if !(fast < both && both < network) {
		t.Errorf("a step takes %v s on one host, %v on two and %v if all links are slow", fast, both, network)
	}
	task, r := plan(config.Hardware{Hosts: 2, Network: slow})
	list := task.changes(r.Best)
	i := slices.IndexFunc(list, func(w *supposition) bool { return w.Change == "twice the rate between hosts, 0.16 Gbit/s" })
	if i < 0 {
		t.Fatalf("no change of the network in %d", len(list))
	}
	faster, err := list[i].PlanAny(t.Context(), func(string) {})
	check(t, err)
	if want := seconds(config.Hardware{Hosts: 2, Network: 2 * slow}); faster.Fastest() != want || want >= both {
		t.Errorf("with twice the network %v s, by the description %v; before %v", faster.Fastest(), want, both)
	}
}

// TestDeepPipeline: of a pipeline with more stages than hosts, neighbours are on one host, so that only one message in three
// crosses the network, which is faster than to deal ranks out in turn; the plan's description says what crosses.
func TestDeepPipeline(t *testing.T) {
	const stages = 4
	m := tiny(t)
	m.Layers = stages
	g, err := graph.Build(m, 16, graph.F32)
	check(t, err)
	c := config.Default()
	c.GlobalBatch, c.SequenceLength, c.Precision, c.Ranks, c.Plan.Pipeline = 8, 16, "fp32", stages, stages
	c.Hardware = config.Hardware{Name: "a100-80", Hosts: 2, Network: 10e6}
	spec, err := job.Settle(config.ToPlan, &c, func(string) {})
	check(t, err)
	on, err := machine.Describe(spec.Machine(), func(string) {})
	check(t, err)
	r, err := (&Task{Machine: on, Graph: g, Spec: spec}).PlanAny(t.Context(), func(string) {})
	check(t, err)
	if text := search.DescribeHosts(r.Best, Deal(on, r.Best.Plan).Host); !strings.Contains(text, "hosts: 2 of 2 ranks; within a host: messages (") || !strings.Contains(text, "; between hosts: ") {
		t.Errorf("of neighbours on one host: %q", text)
	}
	inTurn := ForSearch(on)
	inTurn.Deal = nil
	other := *r.Best
	check(t, other.Time(inTurn))
	if other.Seconds() <= r.Best.Seconds() {
		t.Errorf("%v s with neighbours on one host, %v on others", r.Best.Seconds(), other.Seconds())
	}
}
