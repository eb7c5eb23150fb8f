package planner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/search"
)

// What-ifs. A machine with more memory or faster links is this machine's description with other numbers, and is planned
// for like any described machine: the same search with the operator rates measured here. A run with other keys is
// planned like any other (levers.go).
//
// Each is sketched first, which takes a second or two and bounds its time from above; another bound is the present plan,
// which can run where there is more. Then machines are searched in full for as long as whatIfTime lasts, two at a time.
// So each question has an answer, and it is marked which are bounds.

// Planner finds the plan of a task.
type Planner func(context.Context, *Task) (*search.Result, error)

// whatIfTime bounds the time of full searches for what-ifs, together.
const whatIfTime = 10 * time.Second

// supposition is a run on a changed machine, or a changed run.
type supposition struct {
	search.WhatIf
	Task
	best *search.Candidate // its plan; nil: none is known
}

// WhatIfs plans for machines with more memory or faster links than this one, and for runs with other keys. now is
// the result for this machine.
func (t *Task) WhatIfs(ctx context.Context, now *search.Result, find Planner, note func(string)) ([]search.WhatIf, error) {
	machines := t.changes(now.Best)
	list := machines
	if t.mayChange() {
		levers := append(economise(t.Spec), alternatives(t.Spec, now.Best.Plan.State)...)
		list = slices.Concat(machines, t.pullEach(append(levers, larger(t.Spec))))
	}
	err := try(ctx, list, note, "sketching", func(ctx context.Context, w *supposition) error {
		if err := w.sketch(ctx); err != nil {
			return err
		}
		return w.compare(t, now)
	})
	if err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, whatIfTime)
	defer cancel()
	err = try(within, machines, note, "planning", func(ctx context.Context, w *supposition) error { return w.improve(ctx, t, now, find) })
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = nil
	}
	return answers(list), err
}

// Remedies sketches machines with more memory and runs that need less, when nothing fits this machine. why is the misfit.
func (t *Task) Remedies(ctx context.Context, why *search.Misfit, note func(string)) ([]search.WhatIf, error) {
	list := t.remedies(why)
	err := try(ctx, list, note, "sketching", func(ctx context.Context, w *supposition) error {
		if w.best != nil {
			return nil
		}
		return w.sketch(ctx)
	})
	return answers(list), err
}

// answers returns what was found.
func answers(list []*supposition) (out []search.WhatIf) {
	for _, w := range list {
		out = append(out, w.WhatIf)
	}
	return out
}

// together is how many suppositions are planned for at a time: a search uses one core for most of its time.
const together = 2

// try solves suppositions, some at a time, until one fails.
func try(ctx context.Context, list []*supposition, note func(string), doing string, solve func(context.Context, *supposition) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(list))
	var telling sync.Mutex
	var all sync.WaitGroup
	free := make(chan struct{}, together)
	for i, w := range list {
		free <- struct{}{}
		telling.Lock()
		note(fmt.Sprintf("what if: %s (%s, %d of %d)", w.Change, doing, i+1, len(list)))
		telling.Unlock()
		all.Go(func() {
			if err := solve(ctx, w); err != nil {
				errs[i] = fmt.Errorf("what if: %s: %w", w.Change, err)
				cancel()
			}
			<-free
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) { // not because another failed
			return err
		}
	}
	return errors.Join(errs...)
}

// compare says how much faster than the present plan a sketch is. Where only the machine is another, the present plan's
// programs run unchanged, and may be faster than the sketch.
func (w *supposition) compare(t *Task, now *search.Result) error {
	if w.Price != "" { // another run
		w.gain(t, now)
		return nil
	}
	same := *now.Best
	if err := same.Time(ForSearch(w.Machine)); err != nil {
		return err
	}
	if w.best == nil || same.Seconds() <= w.Seconds {
		w.take(&same, "the same plan")
		w.Gain, w.AtMost = same.Seconds()/now.Best.Seconds()-1, true
		return nil
	}
	w.differ(t, now)
	return nil
}

// improve searches for a faster plan than was sketched.
func (w *supposition) improve(ctx context.Context, t *Task, now *search.Result, find Planner) error {
	r, err := find(ctx, &w.Task)
	switch {
	case err != nil && !errors.Is(err, search.ErrDoesNotFit):
		return err
	case err == nil && r.Best.Seconds() <= w.Seconds:
		w.take(r.Best, "")
		w.differ(t, now)
	}
	w.AtMost = false
	return nil
}

// differ says how the plan differs from the present one.
func (w *supposition) differ(t *Task, now *search.Result) {
	w.Brings = search.Difference(w.Graph, now.Best.Plan, w.best.Plan)
	w.gain(t, now)
}

// gain compares times per token. It compares predictions with predictions: where trials decided now, a new plan is
// compared with the fastest predicted one.
func (w *supposition) gain(t *Task, now *search.Result) {
	was := now.Best.Seconds()
	if now.Best.Tried > 0 {
		was = now.Fastest()
	}
	if w.Seconds > 0 {
		w.Gain = t.tokens()/was/w.TokenRate - 1
	}
}

// tokens returns the tokens of a step.
func (t *Task) tokens() float64 { return float64(t.Spec.GlobalBatch * t.Spec.SequenceLength) }

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
		list = append(list, &supposition{WhatIf: search.WhatIf{Change: change, Set: set}, Task: Task{Machine: on, Graph: t.Graph, Spec: t.Spec}})
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
	if n := m.Hardware.Network; n != nil && n.Hosts > 1 {
		add(fmt.Sprintf("twice the rate between hosts, %.3g Gbit/s", 2*8*n.Link.Bandwidth/1e9), "", m.QuickerNetwork())
	}
	if m.Ranks() > 1 {
		add("twice the rate between ranks", "", m.Quicker(device.Collective, device.Send, device.Recv))
	}
	return list
}

// remedies returns runs that need less, and machines with just enough and with twice as much of what the minimum-memory
// plan lacks.
func (t *Task) remedies(why *search.Misfit) (list []*supposition) {
	if t.mayChange() {
		list = t.pullEach(append(economise(t.Spec), alternatives(t.Spec, why.Frugal.Plan.State)...))
	}
	need := why.Frugal.Needs()
	for i, name := range []string{"just enough memory", "twice that"} {
		on, all := t.Machine, []string{}
		for tier, n := range need {
			if n > t.Machine.Capacity[tier] {
				var set string
				on, set = withMemory(on, device.Tier(tier), int64(i+1)*n)
				all = append(all, set)
			}
		}
		if len(all) == 0 {
			continue
		}
		w := &supposition{WhatIf: search.WhatIf{Change: name, Set: strings.Join(all, " ")}, Task: Task{Machine: on, Graph: t.Graph, Spec: t.Spec}}
		if frugal := *why.Frugal; i == 0 && frugal.Time(ForSearch(on)) == nil {
			w.take(&frugal, frugal.Label)
			w.AtMost = true
		}
		list = append(list, w)
	}
	return list
}

// withMemory returns a copy of a machine with at least the given bytes of a tier per rank, and the configuration's
// limit for that.
func withMemory(m *machine.Machine, t device.Tier, bytes int64) (*machine.Machine, string) {
	more := m.WithMemory(t, bytes)
	return more, search.Limit(t, more.Capacity[t], m.Ranks())
}
