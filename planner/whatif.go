package planner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// What-ifs. A machine with more memory or faster links is this machine's
// description with other numbers, and is planned for like any described machine:
// the same search with the operator rates measured here. The present plan is a
// candidate too, so more is never predicted to be slower.

// Planner finds the plan of a task.
type Planner func(context.Context, *Task) (*search.Result, error)

// whatIfTime bounds the time of all what-ifs together.
const whatIfTime = time.Minute

// supposition is a run on a changed machine, or a changed run.
type supposition struct {
	search.WhatIf
	Task
}

// WhatIfs plans for machines with more memory or faster links than this one. now is
// the result for this machine.
func (t *Task) WhatIfs(ctx context.Context, now *search.Result, find Planner, note func(string)) ([]search.WhatIf, error) {
	return try(ctx, t.changes(now.Best), note, func(ctx context.Context, w *supposition) error { return w.compare(ctx, now, find) })
}

// Remedies plans for machines with more memory and runs that need less, when
// nothing fits this machine. why is the misfit.
func (t *Task) Remedies(ctx context.Context, why *search.Misfit, find Planner, note func(string)) ([]search.WhatIf, error) {
	return try(ctx, t.remedies(why), note, func(ctx context.Context, w *supposition) error { return w.remedy(ctx, find) })
}

// try solves suppositions in sequence until whatIfTime has passed.
func try(ctx context.Context, list []*supposition, note func(string), solve func(context.Context, *supposition) error) (out []search.WhatIf, err error) {
	within, cancel := context.WithTimeout(ctx, whatIfTime)
	defer cancel()
	begin := time.Now()
	for i, w := range list {
		left := time.Since(begin) * time.Duration(len(list)-i) / time.Duration(max(i, 1))
		when := ""
		if i > 0 && left > 2*time.Second {
			when = fmt.Sprintf(", about %.0f s left", min(left, whatIfTime).Seconds())
		}
		note(fmt.Sprintf("what if: %s (%d of %d%s)", w.Change, i+1, len(list), when))
		err := solve(within, w)
		switch {
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			w.Brings = fmt.Sprintf("not found within %v, the limit for all what-ifs together", whatIfTime)
		case err != nil:
			return nil, fmt.Errorf("what if: %s: %w", w.Change, err)
		}
		out = append(out, w.WhatIf)
	}
	return out, nil
}

// compare finds a plan and describes how it differs from the present best one, whose programs can run there
// unchanged. It compares predictions with predictions: where trials decided now, a new plan is compared with
// the fastest predicted one.
func (w *supposition) compare(ctx context.Context, now *search.Result, find Planner) error {
	best := now.Best
	same := *best
	if err := same.Time(ForSearch(w.Machine)); err != nil {
		return err
	}
	w.Seconds, w.Gain, w.Brings = same.Seconds(), same.Seconds()/best.Seconds()-1, "the same plan"
	r, err := find(ctx, &w.Task)
	if err != nil && !errors.Is(err, search.ErrDoesNotFit) {
		return err
	}
	if err == nil && r.Best.Seconds() <= w.Seconds {
		was := best.Seconds()
		if best.Tried > 0 {
			was = now.Fastest()
		}
		w.Seconds, w.Gain, w.Brings = r.Best.Seconds(), r.Best.Seconds()/was-1, search.Difference(w.Graph, best.Plan, r.Best.Plan)
	}
	return nil
}

// remedy reports whether a plan fits.
func (w *supposition) remedy(ctx context.Context, find Planner) error {
	r, err := find(ctx, &w.Task)
	var short *search.Misfit
	switch {
	case errors.As(err, &short):
		w.Brings = fmt.Sprintf("does not fit: it needs %s of %v memory", size.Format(short.Need), short.Tier)
	case err != nil:
		return err
	default:
		w.Seconds, w.Brings = r.Best.Seconds(), r.Best.Label
	}
	return nil
}

// amount returns how many more bytes of a tier what-ifs add: 1 GiB, or a quarter of
// less than 4 GiB.
func amount(have int64) int64 {
	if have < 4<<30 {
		return max(have/4, 1)
	}
	return 1 << 30
}

// changes returns the machines that may do better than this one.
func (t *Task) changes(best *search.Candidate) (list []*supposition) {
	m := t.Machine
	add := func(change, set string, on *machine.Machine) {
		list = append(list, &supposition{search.WhatIf{Change: change, Set: set}, Task{on, t.Graph, t.Spec}})
	}
	need := best.Needs()
	more := amount(m.Capacity[device.DeviceTier])
	on, set := withMemory(m, device.DeviceTier, m.Capacity[device.DeviceTier]+more)
	add("+"+size.Format(more)+" of device memory", set, on)
	if have := m.Capacity[device.HostTier]; need[device.DiskTier] > 0 || need[device.HostTier] > have/2 {
		on, set = withMemory(m, device.HostTier, 2*have)
		add("twice the host memory", set, on)
	}
	add("twice the rate between host and device", "", m.Quicker(device.HostToDev, device.DevToHost))
	if need[device.DiskTier] > 0 {
		add("twice the disk's rate", "", m.Quicker(device.DiskRead, device.DiskWrite))
	}
	if need[device.DiskTier] > 0 && best.Plan.State == plan.FP32State && t.Spec.Plan.File == "" && t.Spec.Begun == nil {
		half := t.Spec.WithState(plan.BF16Moments)
		list = append(list, &supposition{search.WhatIf{Change: "moments in bf16", Set: "optimizer_state=" + plan.BF16Moments.String()}, Task{m.Suppose(), t.Graph, half}})
	}
	if m.Ranks() > 1 {
		add("twice the rate between ranks", "", m.Quicker(device.Collective, device.Send, device.Recv))
	}
	return list
}

// remedies returns machines with just enough and with twice as much of what the
// minimum-memory plan lacks, and runs that need less.
func (t *Task) remedies(why *search.Misfit) (list []*supposition) {
	m, g, spec := t.Machine, t.Graph, t.Spec
	need := why.Frugal.Needs()
	for i, name := range []string{"just enough memory", "twice that"} {
		on, all := m, []string{}
		for tier, n := range need {
			if n > m.Capacity[tier] {
				var set string
				on, set = withMemory(on, device.Tier(tier), int64(i+1)*n)
				all = append(all, set)
			}
		}
		if len(all) > 0 {
			list = append(list, &supposition{search.WhatIf{Change: name, Set: strings.Join(all, " ")}, Task{on, g, spec}})
		}
	}
	if spec.Plan.File != "" || spec.Begun != nil { // they would be other runs
		return list
	}
	shorter := spec.WithSequence(spec.SequenceLength / 2)
	state, settled := spec.State()
	for _, r := range []struct {
		name, set string
		spec      *job.Spec
		helps     bool
	}{
		{"half the sequence length", fmt.Sprintf("sequence_length=%d", shorter.SequenceLength), shorter, true},
		{"bf16", "precision=bf16", spec.WithPrecision(graph.BF16), spec.Precision != graph.BF16},
		{"moments in bf16", "optimizer_state=" + plan.BF16Moments.String(), spec.WithState(plan.BF16Moments), settled && state == plan.FP32State},
	} {
		if !r.helps {
			continue
		}
		if less, err := BuildGraph(r.spec, g.Model, g.Documents); err == nil {
			list = append(list, &supposition{search.WhatIf{Change: r.name, Set: r.set}, Task{m.Suppose(), less, r.spec}})
		}
	}
	return list
}

// withMemory returns a copy of a machine with at least the given bytes of a tier per rank, and the configuration's
// limit for that.
func withMemory(m *machine.Machine, t device.Tier, bytes int64) (*machine.Machine, string) {
	more := m.WithMemory(t, bytes)
	return more, search.Limit(t, more.Capacity[t], m.Ranks())
}
