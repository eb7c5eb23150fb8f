package machine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/search"
)

// What-ifs. A machine with more memory or faster links is this machine's
// description with other numbers, and is planned for like any described machine:
// the same search with the operator rates measured here. The present plan is a
// candidate too, so more is never predicted to be slower.

// Planner finds the plan for a graph and a configuration on a machine.
type Planner func(context.Context, *Machine, *graph.Graph, *config.Config) (*search.Result, error)

// whatIfTime bounds the time of all what-ifs together.
const whatIfTime = time.Minute

// supposition is a run on a changed machine, or a changed run.
type supposition struct {
	search.WhatIf
	machine *Machine
	graph   *graph.Graph
	config  *config.Config
}

// WhatIfs plans for machines with more memory or faster links than this one. now is
// the result for this machine.
func (m *Machine) WhatIfs(ctx context.Context, g *graph.Graph, c *config.Config, now *search.Result, find Planner, note func(string)) ([]search.WhatIf, error) {
	return try(ctx, m.changes(g, c, now.Best), note, func(ctx context.Context, w *supposition) error { return w.compare(ctx, now, find) })
}

// Remedies plans for machines with more memory and runs that need less, when
// nothing fits this machine. why is the misfit.
func (m *Machine) Remedies(ctx context.Context, g *graph.Graph, c *config.Config, why *search.Misfit, find Planner, note func(string)) ([]search.WhatIf, error) {
	return try(ctx, m.remedies(g, c, why), note, func(ctx context.Context, w *supposition) error { return w.remedy(ctx, find) })
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
	if err := same.Time(w.machine.Planning()); err != nil {
		return err
	}
	w.Seconds, w.Gain, w.Brings = same.Seconds(), same.Seconds()/best.Seconds()-1, "the same plan"
	r, err := find(ctx, w.machine, w.graph, w.config)
	if err != nil && !errors.Is(err, search.ErrDoesNotFit) {
		return err
	}
	if err == nil && r.Best.Seconds() <= w.Seconds {
		was := best.Seconds()
		if best.Tried > 0 {
			was = now.Fastest()
		}
		w.Seconds, w.Gain, w.Brings = r.Best.Seconds(), r.Best.Seconds()/was-1, search.Difference(w.graph, best.Plan, r.Best.Plan)
	}
	return nil
}

// remedy reports whether a plan fits.
func (w *supposition) remedy(ctx context.Context, find Planner) error {
	r, err := find(ctx, w.machine, w.graph, w.config)
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
func (m *Machine) changes(g *graph.Graph, c *config.Config, best *search.Candidate) (list []*supposition) {
	add := func(change, set string, on *Machine) {
		list = append(list, &supposition{search.WhatIf{Change: change, Set: set}, on, g, c})
	}
	need := best.Needs()
	more := amount(m.Capacity[device.DeviceTier])
	on, set := m.with(device.DeviceTier, m.Capacity[device.DeviceTier]+more)
	add("+"+size.Format(more)+" of device memory", set, on)
	if have := m.Capacity[device.HostTier]; need[device.DiskTier] > 0 || need[device.HostTier] > have/2 {
		on, set = m.with(device.HostTier, 2*have)
		add("twice the host memory", set, on)
	}
	add("twice the rate between host and device", "", m.quicker(device.HostToDev, device.DevToHost))
	if need[device.DiskTier] > 0 {
		add("twice the disk's rate", "", m.quicker(device.DiskRead, device.DiskWrite))
	}
	if half := *c; need[device.DiskTier] > 0 && best.Plan.State == "" && c.Plan.File == "" {
		half.OptimizerState = halfMoments
		list = append(list, &supposition{search.WhatIf{Change: "moments in bf16", Set: "optimizer_state=" + halfMoments}, m.like(), g, &half})
	}
	if m.ranks > 1 {
		add("twice the rate between ranks", "", m.quicker(device.Collective, device.Send, device.Recv))
	}
	return list
}

// remedies returns machines with just enough and with twice as much of what the
// minimum-memory plan lacks, and runs that need less.
func (m *Machine) remedies(g *graph.Graph, c *config.Config, why *search.Misfit) (list []*supposition) {
	need := why.Frugal.Needs()
	for i, name := range []string{"just enough memory", "twice that"} {
		on, all := m, []string{}
		for t, n := range need {
			if n > m.Capacity[t] {
				var set string
				on, set = on.with(device.Tier(t), int64(i+1)*n)
				all = append(all, set)
			}
		}
		if len(all) > 0 {
			list = append(list, &supposition{search.WhatIf{Change: name, Set: strings.Join(all, " ")}, on, g, c})
		}
	}
	shorter, smaller, half := *c, *c, *c
	shorter.SequenceLength /= 2
	smaller.Precision = "bf16"
	half.OptimizerState = halfMoments
	for _, r := range []struct {
		name, set string
		config    *config.Config
	}{
		{"half the sequence length", fmt.Sprintf("sequence_length=%d", shorter.SequenceLength), &shorter},
		{"bf16", "precision=bf16", &smaller},
		{"moments in bf16", "optimizer_state=" + halfMoments, &half},
	} {
		if r.config == &smaller && c.Precision == "bf16" || r.config == &half && c.OptimizerState != "fp32" || c.Plan.File != "" {
			continue
		}
		if less, err := BuildGraph(r.config, g.Model, g.Documents); err == nil {
			list = append(list, &supposition{search.WhatIf{Change: r.name, Set: r.set}, m.like(), less, r.config})
		}
	}
	return list
}

// like returns a copy of this machine that is only planned for.
func (m *Machine) like() *Machine {
	s, h := *m, *m.Hardware
	s.supposed, s.Hardware = true, &h
	return &s
}

// with returns a copy of this machine with at least the given bytes of a tier per rank, and the configuration's
// limit for that. The described memory grows if needed.
func (m *Machine) with(t device.Tier, bytes int64) (*Machine, string) {
	s := m.like()
	s.Capacity[t] = max(s.Capacity[t], bytes)
	all, mem := s.Capacity[t], &s.Hardware.Memory
	if !m.described && (t != device.DeviceTier || mem.Shared) {
		all *= int64(m.ranks) // a description is one rank's share already
	}
	have := [device.NumTiers]*int64{&mem.Device, &mem.Host, &mem.Disk}
	if beyond := all - *have[t]; beyond > 0 {
		*have[t] += beyond
		if mem.Shared && t != device.DiskTier {
			*have[device.HostTier-t] += beyond
		}
	}
	return s, search.Limit(t, s.Capacity[t], m.ranks)
}

// quicker returns a copy of this machine with twice the rate on the given streams.
func (m *Machine) quicker(streams ...device.Stream) *Machine {
	s := m.like()
	s.Hardware = m.Hardware.Quicker(2, streams...)
	return s
}
