package planner

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// How the optimizer's state is stored changes results, so speed never decides it. The configuration does. Where
// it leaves the format open, this is the one that the run's folder was trained with, else fp32, and bf16
// moments only if nothing else fits.

// storages lists the formats allowed for the optimizer's state, preferred first.
func storages(c *config.Config) []plan.StateFormat {
	if c.OptimizerState != "auto" {
		return []plan.StateFormat{State(c)}
	}
	list := []plan.StateFormat{plan.FP32State, plan.BF16Moments}
	for _, r := range former(c) {
		if r.Plan.State != plan.FP32State && c.Resume != "never" {
			list = append([]plan.StateFormat{r.Plan.State}, list...)
		}
	}
	return slices.Compact(list)
}

// PlanAny is Plan with the first format of the optimizer's state with which anything fits. If none does, the
// error is that of the format that lacks least memory.
func (t *Task) PlanAny(ctx context.Context, note func(string)) (*search.Result, error) {
	c := t.Config
	if c.Plan.File != "" { // the file says which format
		return t.Plan(ctx, note)
	}
	var nearest error
	for i, state := range storages(c) {
		one := *c
		one.OptimizerState = state.String()
		if i > 0 {
			note("optimizer_state " + one.OptimizerState)
		}
		r, err := (&Task{t.Machine, t.Graph, &one}).Plan(ctx, note)
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
