package planner

import (
	"context"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
)

// TestPlanAgain: for memory that a plan leaves unused, planning again names the search's plan where the user has decided
// something that costs time, and a larger batch where the search has decided all; nothing where the decision costs none,
// nor, with a plan of the user's own, anything that changes results. What it has no time for is not known.
func TestPlanAgain(t *testing.T) {
	g, err := graph.Build(tiny(t), 16, graph.F32)
	check(t, err)
	task := func(state string) *Task {
		c := config.Default()
		c.GlobalBatch, c.SequenceLength, c.Hardware.Name, c.Precision, c.Plan.State = 4, 16, "l4", "fp32", state
		spec, err := job.Settle(config.ToPlan, &c, func(string) {})
		check(t, err)
		m, err := machine.Describe(spec.Machine(), func(string) {})
		check(t, err)
		return &Task{Machine: m, Graph: g, Spec: spec}
	}
	for _, c := range []struct{ what, state, want string }{
		{"state on the host, as the user wants it", "host", "with plan=auto it would be at least "},
		{"state on the device, as the user wants it, too", "device", ""},
		{"no decisions", "", "with global_batch=8 "},
	} {
		now, err := Sketch(t.Context(), task(c.state))
		check(t, err)
		brings, known, err := PlanAgain(t.Context(), task(c.state), now.Best)
		check(t, err)
		if !known || !strings.HasPrefix(brings, c.want) || (c.want == "") != (brings == "") || strings.Contains(brings, "other results") != (c.state == "") {
			t.Errorf("%s: %v, %q", c.what, known, brings)
		}
	}
	now, err := Sketch(t.Context(), task(""))
	check(t, err)
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if _, known, err := PlanAgain(late, task("host"), now.Best); known || err == nil {
		t.Errorf("without time: known %v, %v", known, err)
	}
}
