package planner

import (
	"context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/search"
)

// Wear returns how fast steps of so many seconds, in which each rank writes that many bytes to its host's disk, use the
// disk up; nil if nothing is written.
func (t *Task) Wear(written []int64, seconds float64) *search.Wear {
	return search.NewWear(written, t.Machine.Host, seconds, t.Machine.Endurance())
}

// slower bounds the ratio of times at which a plan without the disk is taken instead of one that uses it up within a month,
// and hopeful that of its sketch for which it is searched for.
const slower, hopeful = 1.02, 1.15

// unworn returns the result of a search without the disk, if the present one's plan would use the disk up within a month,
// the other takes hardly longer, and the optimizer's state has the same format; else the present one.
func (t *Task) unworn(ctx context.Context, now *search.Result, note func(string)) (*search.Result, error) {
	best, limit := now.Best, now.Best.Seconds()
	if w := t.Wear(best.Traffic().DiskWrite, limit); !w.Soon() || best.Tried > 0 || t.Spec.Plan.File != "" {
		return now, nil
	}
	dry := &Task{Machine: t.Machine.Suppose(), Graph: t.Graph, Spec: t.Spec.WithState(best.Plan.State), Enough: t.Enough}
	dry.Machine.Capacity[device.DiskTier] = 0
	if !dry.mayFit() {
		return now, nil
	}
	note("planning without the disk, which the plan wears")
	r, err := dry.plan(ctx, note, true)
	if err == nil && r.Best.Seconds() > slower*limit && r.Best.Seconds() <= hopeful*limit && !t.told() {
		r, err = dry.plan(ctx, note, false)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil || r.Best.Seconds() > slower*limit: // nothing fits, or the user's decisions need the disk
		return now, nil
	}
	r.Evaluated, r.Cut = r.Evaluated+now.Evaluated, r.Cut || now.Cut
	return r, nil
}

// Spare returns the alternative to a plan that wears the disk: this run without the disk or, if that does not fit, one
// with all economies. It is sketched: its fastest plan takes at most as long as is said. It returns nil if the
// configuration insists on the disk.
func (t *Task) Spare(ctx context.Context, now *search.Candidate) (*search.WhatIf, error) {
	if t.Spec.Plan.File != "" {
		return nil, nil
	}
	const without = "limits.disk=none"
	dry := t.Machine.Suppose()
	dry.Capacity[device.DiskTier] = 0
	alone := &Task{Machine: dry, Graph: t.Graph, Spec: t.Spec}
	list := []*supposition{{WhatIf: search.WhatIf{Set: without}, Task: *alone}}
	if all := economise(t.Spec); len(all) > 0 {
		if w := alone.pull(all[len(all)-1]); w != nil {
			w.Set = without + " " + w.Set
			list = append(list, w)
		}
	}
	for _, w := range list {
		w.Change = "no disk"
		if !w.mayFit() {
			continue
		}
		err := w.sketch(ctx)
		if err != nil || w.Brings == insists {
			return nil, err
		}
		if w.best != nil {
			w.spares(now)
			return &w.WhatIf, nil
		}
	}
	host, err := enoughHost(ctx, alone)
	if err != nil {
		return nil, err
	}
	return &search.WhatIf{Change: "no disk", Set: without, Brings: fmt.Sprintf("nothing fits; hint: %s, adapters (lora), or a shorter sequence_length", host)}, nil
}

// spares says how fast the run is, beside the plan that wears the disk.
func (w *supposition) spares(now *search.Candidate) {
	w.Gain = w.Seconds/now.Seconds() - 1
	if state := w.best.Plan.State; w.Price == "" && state != now.Plan.State {
		w.Set += " optimizer_state=" + state.String()
		w.Price = "state is rounded more coarsely"
	}
	w.Brings = fmt.Sprintf("a step takes at most %.4g s (%+.1f %%)", w.Seconds, 100*w.Gain)
	if w.Price != "" {
		w.Brings += ", with other results: " + w.Price
	}
}

// enoughHost says with how much host memory a task fits that does not, as far as that is all it lacks.
func enoughHost(ctx context.Context, t *Task) (string, error) {
	const more = "more host memory"
	why := (&sharedTask{Task: *t}).fitsAnyhow(ctx)
	var lacking *search.Misfit
	if !errors.As(why, &lacking) {
		return more, ctx.Err()
	}
	for tier, need := range lacking.Frugal.Needs() {
		if device.Tier(tier) != device.HostTier && need > t.Machine.Capacity[tier] {
			return more, nil
		}
	}
	return search.Limit(device.HostTier, lacking.Frugal.Needs()[device.HostTier], lacking.Frugal.Plan.Ranks), nil
}
