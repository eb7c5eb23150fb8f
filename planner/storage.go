package planner

import (
	"context"
	"errors"
	"math"

	"github.com/athanor-llm/athanor/search"
)

// Sketch is a Planner that takes a small part of the time. The fastest plan takes at most as long as its plan.
func Sketch(ctx context.Context, t *Task) (*search.Result, error) {
	return t.planAny(ctx, func(string) {}, true)
}

// planAny is PlanAny, or its sketch.
func (t *Task) planAny(ctx context.Context, note func(string), sketch bool) (*search.Result, error) {
	if t.Spec.Plan.File != "" { // the file says which format
		return t.plan(ctx, note, sketch)
	}
	var nearest error
	for i, state := range t.Spec.OptimizerState {
		if i > 0 {
			note("optimizer_state " + state.String())
		}
		one := *t
		one.Spec = t.Spec.WithState(state)
		r, err := one.plan(ctx, note, sketch)
		if err == nil || !errors.Is(err, search.ErrDoesNotFit) {
			return r, err
		}
		if nearest == nil || lack(err) < lack(nearest) {
			nearest = err
		}
	}
	return nil, nearest
}

// lack returns by how many bytes a misfit exceeds the memory.
func lack(err error) int64 {
	var e *search.Misfit
	if !errors.As(err, &e) {
		return math.MaxInt64
	}
	return e.Need - e.Have
}
