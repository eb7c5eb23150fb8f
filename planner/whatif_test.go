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
	sketches := func() []*supposition {
		list := task.pullEach([]lever{larger(spec)})
		for _, w := range list {
			check(t, w.sketch(t.Context()))
		}
		return list
	}
	find := func(ctx context.Context, one *Task) (*search.Result, error) { return one.PlanAny(ctx, func(string) {}) }
	none := func(*supposition) {}
	list := sketches()
	check(t, improve(t.Context(), list, func(string) {}, 0, func(context.Context, *Task) (*search.Result, error) {
		t.Error("a search has begun after its time")
		return nil, search.ErrDoesNotFit
	}, none))
	for _, w := range list {
		if w.Seconds > 0 && !w.AtMost {
			t.Errorf("%s: a sketch is said to be an answer", w.Set)
		}
	}
	check(t, improve(t.Context(), list, func(string) {}, time.Hour, find, none))
	for _, w := range list {
		w.Enough = nil
		there, err := w.PlanAny(t.Context(), func(string) {})
		check(t, err)
		if w.AtMost || w.Seconds != there.Best.Seconds() {
			t.Errorf("%s: %v s (bound: %v), planning says %v", w.Set, w.Seconds, w.AtMost, there.Best.Seconds())
		}
	}
	cut := sketches()
	check(t, improve(t.Context(), cut, func(string) {}, time.Hour, func(ctx context.Context, one *Task) (*search.Result, error) {
		r, err := find(ctx, one)
		if err == nil {
			r.Cut = true
		}
		return r, err
	}, none))
	for i, w := range cut {
		if !w.AtMost || w.Seconds != list[i].Seconds {
			t.Errorf("%s: a search that was cut short says %v s (bound: %v)", w.Set, w.Seconds, w.AtMost)
		}
	}
	less, more := list[0], *list[0]
	less.Price, more.Price = "", ""
	more.Seconds, more.best = 2*less.Seconds, cut[0].best
	inherit([]*supposition{less, cut[0], &more})
	if more.Seconds != less.Seconds || more.best != less.best {
		t.Errorf("with more memory %v s instead of %v", more.Seconds, less.Seconds)
	}
}
