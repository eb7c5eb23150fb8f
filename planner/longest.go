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
	TooLong int    `json:"too_long"` // the next length that was tried
	Beyond  string `json:"beyond"`   // why that is too long
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
// It doubles the length until no minimum-memory plan fits, then bisects; it considers all plans only for the
// first length that is too long. Lengths with few divisors cannot be cut as finely as others, so longer ones
// that fit may exist. Where ranks share sequences, step is raised to a length that they can share.
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
	fits := func(n int) (bool, error) {
		note(fmt.Sprintf("sequences of %d tokens", n*step))
		ok, err := fitsFrugally(ctx, m, spec, at, n*step)
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
	for {
		note(fmt.Sprintf("all plans for sequences of %d tokens", hi*step))
		why := fitsAnyhow(ctx, m, spec, at, hi*step)
		var bad *config.Error
		switch {
		case why == nil: // by a plan that is not minimum-memory
			lo, hi = hi, hi+max(1, hi/nearEnough)
		case lo > 0 && (errors.Is(why, search.ErrDoesNotFit) || errors.As(why, &bad)):
			return &Longest{Tokens: lo * step, TooLong: hi * step, Beyond: why.Error()}, nil
		default:
			return nil, why
		}
	}
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

// fitsAnyhow returns nil if sequences of n tokens fit. Where memory is short, the error
// is a *search.Misfit.
func fitsAnyhow(ctx context.Context, m *machine.Machine, spec *job.Spec, at AtLength, n int) error {
	req, err := long(m, spec, at, n)
	if err != nil {
		return err
	}
	for _, req.State = range spec.OptimizerState {
		if err = search.Fits(ctx, req, ForSearch(m)); !errors.Is(err, search.ErrDoesNotFit) {
			break
		}
	}
	return advise(m, err)
}

// fitsFrugally is a quick form of fitsAnyhow. It considers minimum-memory plans only,
// with the optimizer's state in the smallest format that is allowed.
func fitsFrugally(ctx context.Context, m *machine.Machine, spec *job.Spec, at AtLength, n int) (bool, error) {
	req, err := long(m, spec, at, n)
	if err != nil {
		return false, err
	}
	req.State = smallestState(spec)
	return search.FitsFrugally(ctx, req, ForSearch(m))
}

// smallestState returns the smallest format that is allowed for the optimizer's state.
func smallestState(spec *job.Spec) plan.StateFormat {
	return slices.MinFunc(spec.OptimizerState, func(a, b plan.StateFormat) int {
		return cmp.Compare(plan.StateBytes(spec.Optimizer, a, spec.Precision), plan.StateBytes(spec.Optimizer, b, spec.Precision))
	})
}

// long returns the search request for sequences of n tokens.
func long(m *machine.Machine, spec *job.Spec, at AtLength, n int) (*search.Request, error) {
	if n > maxSequence {
		return nil, spec.Fault("sequence_length", fmt.Sprintf("%d tokens exceed the maximum of %d", n, maxSequence))
	}
	longer, g, err := at(n)
	if err != nil {
		return nil, err
	}
	t := &Task{Machine: m, Graph: g, Spec: longer}
	req := t.Request()
	req.Pins, err = t.pins()
	return req, err
}
