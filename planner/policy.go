package planner

import (
	"context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/policy"
	"github.com/athanor-llm/athanor/policy/elixir"
	"github.com/athanor-llm/athanor/search"
)

// PolicyRequest returns the measured request that policies plan for.
func (t *Task) PolicyRequest(ctx context.Context) (*policy.Request, error) {
	spec := t.Spec
	if spec.GlobalBatch*spec.PerSequence()%spec.Ranks != 0 {
		return nil, spec.Fault("global_batch", fmt.Sprintf("%d sequences cannot be divided among %d ranks; hint: use a multiple of ranks", spec.GlobalBatch, spec.Ranks))
	}
	r := policies(t.Machine, t.Request())
	return r, r.Measure(ctx, StepOptions(spec))
}

// policies describes a machine, within its limits, and a search request to
// policies.
func policies(m *machine.Machine, req *search.Request) *policy.Request {
	h := *m.Hardware
	h.Memory.Device, h.Memory.Host, h.Memory.Disk = m.Capacity[device.DeviceTier], m.Capacity[device.HostTier], m.Capacity[device.DiskTier]
	return ForPolicies(req, &h)
}

// ForPolicies translates a search request on a machine for policies. Their heads process at most one sequence
// at a time, or the smallest batch that the order of sums permits.
func ForPolicies(req *search.Request, h *hardware.Hardware) *policy.Request {
	g, n := req.Graph, req.GlobalBatch/req.Ranks
	return &policy.Request{Graph: g, Hardware: h, Ranks: req.Ranks, Sequences: n,
		HeadRows: req.Head(g.Seq*min(g.CutSequences(), n), h.Memory.Device)}
}

// rivals returns the plans of all policies that have one, with the run's optimizer and the storage format of its
// state. The request must have been measured.
func rivals(r *policy.Request, req *search.Request) (list []search.Rival) {
	for _, p := range policy.All() {
		if pl, err := p.Plan(r); err == nil {
			pl.Optimizer, pl.State = req.Optimizer, req.State
			list = append(list, search.Rival{Name: p.Name, Plan: pl, Way: true})
		}
	}
	return list
}

// former returns the plan that the run's folder was last trained with. As a rival
// it ensures that more memory or faster links never slow the run down.
func former(spec *job.Spec) []search.Rival {
	if spec.Former == nil {
		return nil
	}
	return []search.Rival{{Name: "the run so far", Plan: spec.Former}}
}

// PlanBy evaluates a named policy's plan instead of searching.
func (t *Task) PlanBy(ctx context.Context, name string) (*search.Result, error) {
	p, err := policy.Find(name)
	if err != nil {
		return nil, &config.Error{File: t.Spec.File, Msg: err.Error()}
	}
	r, err := t.PolicyRequest(ctx)
	if err != nil {
		return nil, err
	}
	pl, err := p.Plan(r)
	if errors.Is(err, elixir.ErrMemory) {
		return nil, fmt.Errorf("%w: %w", search.ErrDoesNotFit, err)
	}
	if err != nil {
		return nil, err
	}
	req, mach := t.Request(), ForSearch(t.Machine)
	pl.Optimizer, pl.State = req.Optimizer, req.State
	cand, err := search.Evaluate(ctx, req, pl, mach, name)
	if err != nil {
		return nil, err
	}
	return t.only(ctx, req, mach, cand)
}
