package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// Longest is the longest sequence that fits, in tokens.
type Longest struct {
	Tokens  int    `json:"tokens"`
	Sharing string `json:"sharing,omitempty"` // how ranks share sequences or matrices, if they do although the configuration does not say so
	TooLong int    `json:"too_long"`          // the next length that was tried
	Beyond  string `json:"beyond"`            // why that is too long
}

// maxSequence bounds sequence_length, see package config.
const maxSequence = 1 << 24

// nearEnough ends the search when the interval is 1/nearEnough of the length. A million tokens need not be
// known to within 256, and lengths that are not multiples of a large power of two make long programs, which
// take a minute each.
const nearEnough = 100

// AtLength returns a job with sequences of the given number of tokens, and its graph.
type AtLength func(tokens int) (*job.Spec, *graph.Graph, error)

// MaxSequence finds the longest sequence, in multiples of step tokens, on which a
// job's model can be trained. The planner has a plan for it, and none for
// the next length tried, longer by one step or by a hundredth, whichever is more.
//
// It doubles the length until no minimum-memory plan fits, then bisects; it considers all plans, and whole steps of many
// micro-batches, only for the last length that fits and the first that is too long. Lengths with few divisors cannot be
// cut as finely as others, so longer ones that fit may exist. Where ranks share sequences, step is raised to a length that
// they can share, and where not even one step fits, it is a sixteenth. As in planning, ranks may share sequences or matrices if nothing fits without.
func MaxSequence(ctx context.Context, m *machine.Machine, spec *job.Spec, at AtLength, step int, note func(string)) (*Longest, error) {
	if step < 1 || step > maxSequence {
		return nil, spec.Fault("--step", fmt.Sprintf("%d tokens is out of range; hint: use from 1 to %d", step, maxSequence))
	}
	if spec.Plan.File != "" {
		return nil, spec.Fault("plan", "a plan.json is for one sequence length only; hint: leave `plan` out to search for the longest")
	}
	if unit := graph.PartUnit(spec.Share); step%unit != 0 {
		step += unit - step%unit
	}
	l := &lengths{machine: m, spec: spec, at: at}
	fits := func(n int) (bool, error) {
		note(fmt.Sprintf("sequences of %d tokens", n*step))
		ok, err := l.fitsFrugally(ctx, n*step)
		var bad *config.Error
		if n > 1 && errors.As(err, &bad) {
			return false, nil
		}
		return ok, err
	}
	lo, hi, err := frontier(maxSequence/step, fits)
	if err != nil {
		return nil, err
	}
	for lo > 0 { // what fitted for a shortened step may not for a whole one
		note(fmt.Sprintf("whole steps of sequences of %d tokens", lo*step))
		why := l.fitsAnyhow(ctx, lo*step)
		if why == nil {
			break
		}
		if !isTooLong(why) {
			return nil, why
		}
		lo, hi = lo-max(1, lo/nearEnough), lo
	}
	for {
		note(fmt.Sprintf("all plans for sequences of %d tokens", hi*step))
		why := l.fitsAnyhow(ctx, hi*step)
		switch {
		case why == nil: // by a plan that is not minimum-memory
			lo, hi = hi, hi+max(1, hi/nearEnough)
		case lo > 0 && isTooLong(why):
			return &Longest{Tokens: lo * step, Sharing: l.sharing, TooLong: hi * step, Beyond: why.Error()}, nil
		case lo == 0 && errors.Is(why, search.ErrDoesNotFit):
			return shorter(ctx, l, step, why, note)
		default:
			return nil, why
		}
	}
}

// shorter finds the longest sequence of less than a step, of which one does not fit for the given reason.
func shorter(ctx context.Context, l *lengths, step int, why error, note func(string)) (*Longest, error) {
	const finer = 16
	less := step / finer
	if unit := graph.PartUnit(l.spec.Share); less%unit != 0 || less == 0 {
		less = unit
	}
	if less == step {
		return nil, fmt.Errorf("not even sequences of %d tokens: %w", step, why)
	}
	return MaxSequence(ctx, l.machine, l.spec, l.at, less, note)
}

// isTooLong reports whether an error says that sequences are too long, for the memory or for the configuration.
func isTooLong(err error) bool {
	var bad *config.Error
	return errors.Is(err, search.ErrDoesNotFit) || errors.As(err, &bad)
}

// frontier finds by doubling and bisection a number that fits, 0 if none does, and a greater one that does not
// fit or exceeds most; nearEnough bounds the distance between the two.
func frontier(most int, fits func(int) (bool, error)) (lo, hi int, err error) {
	var ok bool
	for hi = 1; hi <= most; lo, hi = hi, 2*hi {
		if ok, err = fits(hi); err != nil {
			return 0, 0, err
		}
		if !ok {
			break
		}
	}
	hi = min(hi, most+1)
	for hi-lo > max(1, hi/nearEnough) {
		mid := (lo + hi) / 2
		if ok, err = fits(mid); err != nil {
			return 0, 0, err
		}
		if ok {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, hi, nil
}

// lengths asks whether sequences of some length fit.
type lengths struct {
	machine *machine.Machine
	spec    *job.Spec
	at      AtLength
	sharing string // of ranks, for the longest that was found to fit; "": as configured
}

// fitsAnyhow returns nil if sequences of n tokens fit. Where memory is short, the error is the *search.Misfit that lacks least.
func (l *lengths) fitsAnyhow(ctx context.Context, n int) error {
	tasks, err := l.tasks(n)
	for i := range tasks {
		bad := tasks[i].fitsAnyhow(ctx)
		if bad == nil {
			l.sharing = tasks[i].sharing
			return nil
		}
		if err == nil || lack(bad) < lack(err) {
			err = bad
		}
	}
	return err
}

// fitsFrugally is a quick form of fitsAnyhow. It considers minimum-memory plans only, of shortened steps, with the optimizer's
// state in the smallest format that is allowed.
func (l *lengths) fitsFrugally(ctx context.Context, n int) (bool, error) {
	tasks, err := l.tasks(n)
	for i := 0; err == nil && i < len(tasks); i++ {
		req, bad := tasks[i].request()
		if bad != nil {
			return false, bad
		}
		req.State = smallestState(l.spec)
		var ok bool
		if ok, err = search.FitsFrugally(ctx, req, ForSearch(tasks[i].Machine)); ok {
			l.sharing = tasks[i].sharing
			return true, nil
		}
	}
	return false, err
}

// smallestState returns the smallest format that is allowed for the optimizer's state.
func smallestState(spec *job.Spec) plan.StateFormat {
	return slices.MinFunc(spec.OptimizerState, func(a, b plan.StateFormat) int {
		return cmp.Compare(plan.StateBytes(spec.Optimizer, a, spec.Precision), plan.StateBytes(spec.Optimizer, b, spec.Precision))
	})
}

// sharedTask is a task with its ranks as configured or, as sharing says, dividing sequences or matrices.
type sharedTask struct {
	Task
	sharing string
}

// fitsAnyhow returns nil if the task fits, with any format of the optimizer's state that is allowed.
func (t *sharedTask) fitsAnyhow(ctx context.Context) error {
	req, err := t.request()
	if err != nil {
		return err
	}
	for _, req.State = range t.Spec.OptimizerState {
		if err = search.Fits(ctx, req, ForSearch(t.Machine)); !errors.Is(err, search.ErrDoesNotFit) {
			break
		}
	}
	return advise(t.Machine, err)
}

// request returns what to ask the search.
func (t *sharedTask) request() (*search.Request, error) {
	req := t.Request()
	var err error
	req.Pins, err = t.pins()
	return req, err
}

// tasks returns the ways to train on sequences of n tokens, first that with which shorter ones fitted.
func (l *lengths) tasks(n int) ([]sharedTask, error) {
	if n > maxSequence {
		return nil, l.spec.Fault("sequence_length", fmt.Sprintf("%d tokens exceed the maximum of %d", n, maxSequence))
	}
	longer, g, err := l.at(n)
	if err != nil {
		return nil, err
	}
	own := Task{Machine: l.machine, Graph: g, Spec: longer}
	list := []sharedTask{{Task: own}}
	for _, d := range own.divisions() {
		if t, bad := own.divided(d); bad == nil { // else so many cannot share it
			list = append(list, sharedTask{*t, d.String()})
		}
	}
	if k := slices.IndexFunc(list, func(t sharedTask) bool { return t.sharing == l.sharing }); k > 0 {
		list[0], list[k] = list[k], list[0]
	}
	return list, nil
}
