package search

import (
	"context"
)

// preferThrifty considers the candidates whose predicted times are too close to the fastest to tell apart. It puts
// first the one that would be fastest if the step waited after all for a part of what keeps links and the
// host's cores busy. All of them have micro-batches of the same size, since operators of other sizes may not
// have been timed.
func preferThrifty(_ context.Context, _ *problem, found shortlist) (shortlist, error) {
	const asFast, late = 1.005, 0.02
	fastest := found[0]
	feared := func(c *Candidate) float64 { return c.Seconds() + late*c.transferSeconds() }
	best := fastest
	for _, c := range found {
		if c.Seconds() <= asFast*fastest.Seconds() && c.Plan.MicroBatch == fastest.Plan.MicroBatch && feared(c) < feared(best) {
			best = c
		}
	}
	return found.first(best), nil
}

// lowerAllRanks lowers the first candidate for all ranks. If a larger shard of one
// rank does not fit, it drops the candidate and takes the next.
func lowerAllRanks(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	for len(found) > 0 {
		fits, err := found[0].Complete(ctx, p.req)
		if fits || err != nil {
			return found, err
		}
		found = found[1:]
	}
	return resortToFrugalest(ctx, p, found)
}
