package planner

import (
	"context"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/search"
)

// TestImprove: with time, each bound becomes what planning says. Without, nothing is begun; a search that was cut short leaves a bound.
// A machine with more memory does no worse than one with less.
func TestImprove(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	g, err := graph.Build(tiny(t), 16, graph.F32)
	check(t, err)
	c := config.Default()
	c.GlobalBatch, c.SequenceLength, c.Hardware.Name, c.Precision, c.Model.Name = 4, 16, "l4", "fp32", "gpt2"
	c.Limits.Device, c.Limits.Host = 200<<10, 1<<30
	spec, err := job.Settle(config.ToPlan, &c, func(string) {})
	check(t, err)
	m, err := machine.Describe(spec.Machine(), func(string) {})
	check(t, err)
	task := &Task{Machine: m, Graph: g, Spec: spec}
	list := task.pullEach([]lever{larger(spec)})
	check(t, list[0].sketch(t.Context()))
	cut := *list[0]
	there, err := list[0].PlanAny(t.Context(), func(string) {})
	check(t, err)
	begun := 0
	find := func(context.Context, *Task) (*search.Result, error) {
		begun++
		return there, nil
	}
	for _, c := range []struct {
		w          *supposition
		lasts      time.Duration
		cut, bound bool
		begun      int
		seconds    float64
	}{
		{list[0], 0, false, true, 0, list[0].Seconds}, {list[0], time.Hour, false, false, 1, there.Best.Seconds()}, {&cut, time.Hour, true, true, 2, there.Best.Seconds()},
	} {
		there.Cut = c.cut
		check(t, improve(t.Context(), []*supposition{c.w}, func(string) {}, c.lasts, find, func(*supposition) {}))
		if begun != c.begun || c.w.AtMost != c.bound || c.w.Seconds != c.seconds {
			t.Errorf("%d searches, %v s (bound: %v), want %+v", begun, c.w.Seconds, c.w.AtMost, c)
		}
	}
	less, more := list[0], *list[0]
	less.Price, more.Price = "", ""
	more.Seconds, more.best = 2*less.Seconds, new(search.Candidate)
	inherit([]*supposition{less, &more})
	if more.Seconds != less.Seconds || more.best != less.best {
		t.Errorf("with more memory %v s instead of %v", more.Seconds, less.Seconds)
	}
}
