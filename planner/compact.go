package planner

import (
	"context"
	"errors"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// Where weights that are 0 stay so (keep_mask), plans may store only the others: less memory and fewer bytes on links, but the device has
// to expand weights before it uses them. So it is tried where not everything is on the device, and the faster plan is taken.

// mayCompact reports whether another plan than that which was found, or not, may be better if it stores no zeros.
func mayCompact(t *Task, r *search.Result, err error) bool {
	g, state := t.Graph, t.Request().State
	if _, moments := state.Types(); moments != graph.F32 || !t.Spec.Optimizer.Rule().Elementwise || t.Machine.Ranks() > 1 {
		return false
	}
	whole := plan.Chunk{Last: len(g.Params)}
	return whole.Sparse(g) && (errors.Is(err, search.ErrDoesNotFit) || err == nil && !onDevice(g, r.Best.Plan))
}

// onDevice reports whether everything that is trained is on the device.
func onDevice(g *graph.Graph, pl *plan.Plan) bool {
	for _, c := range pl.Chunks {
		if !g.Params[c.First].Frozen && (c.Weights != device.DeviceTier || c.Grads != device.DeviceTier || c.State != device.DeviceTier) {
			return false
		}
	}
	return true
}

// compactly searches for a plan that stores no zeros, and returns it if it is faster than one that stores them, or fits.
func compactly(ctx context.Context, req *search.Request, mach *search.Machine, note func(string), dense *search.Result, err error) (*search.Result, error) {
	other := *req
	other.Compact, other.Rivals = true, nil
	r, compactErr := search.Search(ctx, &other, mach, note)
	switch {
	case compactErr != nil && err != nil && lack(compactErr) < lack(err):
		return nil, compactErr
	case compactErr != nil:
		return dense, err
	case err == nil && dense.Best.Seconds() <= r.Best.Seconds():
		return dense, nil
	}
	return r, nil
}
