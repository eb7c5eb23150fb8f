package run

import (
	"context"
	"errors"
	"slices"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// How the optimizer's state is stored changes results, so a plan that is merely
// faster never decides it: it is what the configuration says or, where that leaves
// it open, what the run's folder was trained with, fp32, and where nothing fits at
// all, moments in bf16.

// storages are what a run's optimizer state may be stored as, first choice first;
// in the words of program.Plan.State.
func storages(c *config.Config) []string {
	if c.OptimizerState != "auto" {
		return []string{stateOf(c)}
	}
	list := []string{"", halfMoments}
	for _, r := range former(c) {
		if r.Plan.State != "" && c.Resume != "never" {
			list = append([]string{r.Plan.State}, list...)
		}
	}
	return slices.Compact(list)
}

const halfMoments = "bf16_moments"

// stateOf is a configuration's choice in the words of a plan, fp32 if it has none.
func stateOf(c *config.Config) string {
	if slices.Contains(program.StateNames()[1:], c.OptimizerState) {
		return c.OptimizerState
	}
	return ""
}

// PlanAny is Plan with the first of what the optimizer's state may be stored as for
// which anything fits. Where nothing does, the error is that of the first.
func (m *Machine) PlanAny(ctx context.Context, g *graph.Graph, c *config.Config, note func(string)) (*plan.Result, error) {
	if c.Plan.File != "" { // it says
		return m.Plan(ctx, g, c, note)
	}
	var first error
	for i, state := range storages(c) {
		one := *c
		if one.OptimizerState = state; state == "" {
			one.OptimizerState = program.StateNames()[0]
		}
		if i > 0 {
			note("optimizer_state " + one.OptimizerState)
		}
		r, err := m.Plan(ctx, g, &one, note)
		if err == nil || !errors.Is(err, plan.ErrDoesNotFit) {
			return r, err
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}
