package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
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
// which can run where there is more. Then they are searched in full for as long as whatIfTime lasts, first those of
// which a bound says little. So each question has an answer, and it is marked which are bounds.

// Planner finds the plan of a task.
type Planner func(context.Context, *Task) (*search.Result, error)

// whatIfTime bounds the time of all what-ifs, but searches in full have leastSearching of it.
const (
	whatIfTime     = 21 * time.Second
	leastSearching = 10 * time.Second
)

// near is the share of a step that a faster plan saves at most of a sketch that is nearly as good as an answer.
const near = 0.1

// supposition is a run on a changed machine, or a changed run.
type supposition struct {
	search.WhatIf
	Task
	best *search.Candidate // its plan; nil: none is known
	kept bool              // that is the present plan
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
	began := time.Now()
	err := try(ctx, list, note, "sketching", func(ctx context.Context, w *supposition) error {
		if err := w.sketch(ctx); err != nil {
			return err
		}
		return w.compare(t, now)
	})
	if err == nil {
		err = improve(ctx, list, note, max(whatIfTime-time.Since(began), leastSearching), find, func(w *supposition) { w.differ(t, now) })
	}
	return answers(list), err
}

// Remedies sketches machines with more memory and runs that need less, when nothing fits this machine, and plans for them if find
// is not nil. why is the misfit.
func (t *Task) Remedies(ctx context.Context, why *search.Misfit, find Planner, note func(string)) ([]search.WhatIf, error) {
	list, began := t.remedies(why), time.Now()
	err := try(ctx, list, note, "sketching", func(ctx context.Context, w *supposition) error {
		if w.best != nil {
			return nil
		}
		return w.sketch(ctx)
	})
	if err == nil && find != nil {
		err = improve(ctx, list, note, max(whatIfTime-time.Since(began), leastSearching), find, func(*supposition) {})
	}
	inherit(list)
	return answers(list), err
}

// inherit has a machine do what one before it in the list does that has less memory, where its own search found only slower plans.
func inherit(list []*supposition) {
	var less *supposition
	for _, w := range list {
		if w.Price != "" || w.best == nil {
			continue // another run, or nothing fits
		}
		if less != nil && less.Seconds < w.Seconds {
			w.take(less.best, less.Brings)
		}
		less = w
	}
}

// answers returns what was found.
func answers(list []*supposition) (out []search.WhatIf) {
	for _, w := range list {
		out = append(out, w.WhatIf)
	}
	return out
}

// plannedTogether returns how many suppositions are planned for at a time: a search uses one core for most of its time, and holds
// programs.
func plannedTogether() int { return min(max(runtime.GOMAXPROCS(0)/2, 2), 6) }

// try solves suppositions, some at a time, until one fails.
func try(ctx context.Context, list []*supposition, note func(string), doing string, solve func(context.Context, *supposition) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(list))
	var telling sync.Mutex
	var all sync.WaitGroup
	free := make(chan struct{}, plannedTogether())
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
		w.kept = true
		w.Gain, w.AtMost = same.Seconds()/now.Best.Seconds()-1, true
		return nil
	}
	w.differ(t, now)
	return nil
}

// improve searches for faster plans than were sketched for some time: first where they may be most, and of those where the
// sketch is fastest. What is better is told to noted.
func improve(ctx context.Context, list []*supposition, note func(string), lasts time.Duration, find Planner, noted func(*supposition)) error {
	open := slices.DeleteFunc(slices.Clone(list), func(w *supposition) bool { return !w.AtMost })
	slices.SortStableFunc(open, func(a, b *supposition) int {
		return cmp.Or(cmp.Compare(a.certain(), b.certain()), cmp.Compare(b.TokenRate, a.TokenRate))
	})
	enough, stop := context.WithTimeout(ctx, lasts)
	defer stop()
	return try(ctx, open, note, "planning", func(ctx context.Context, w *supposition) error {
		if enough.Err() != nil {
			return nil
		}
		w.Enough = enough.Done()
		return w.improve(ctx, find, noted)
	})
}

// certain ranks how little a search may find: most beside a sketch whose device waits or computes things again, least beside a
// present plan that no sketch beats.
func (w *supposition) certain() int {
	switch {
	case w.kept:
		return 2
	case w.best.Idle()+w.best.Repeated() < near:
		return 1
	}
	return 0
}

// improve searches for a faster plan than was sketched. What an interrupted search found is a bound, too.
func (w *supposition) improve(ctx context.Context, find Planner, noted func(*supposition)) error {
	r, err := find(ctx, &w.Task)
	switch {
	case errors.Is(err, search.ErrDoesNotFit):
		return nil // as far as the search saw
	case err != nil:
		return err
	case r.Best.Seconds() <= w.Seconds:
		w.take(r.Best, r.Best.Label)
		noted(w)
	}
	w.AtMost = r.Cut
	return nil
}

// differ says how the plan differs from the present one.
func (w *supposition) differ(t *Task, now *search.Result) {
	if w.Price == "" { // else another run, of other sizes
		w.Brings = search.Difference(w.Graph, now.Best.Plan, w.best.Plan)
	}
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
		state := why.Frugal.Plan.State
		list = t.pullEach(slices.Concat(economise(t.Spec), alternatives(t.Spec, state), resorts(t.Spec, state)))
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
