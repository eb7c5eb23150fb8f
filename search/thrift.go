package search

import (
	"context"

	"github.com/athanor-llm/athanor/device"
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

// lowerAllRanks lowers the first candidate for all ranks. If a larger shard of one rank does not fit, the candidate is lowered
// again with that much memory left free; what fits then is one of the candidates. Another is dropped, and the next one taken.
func lowerAllRanks(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	for len(found) > 0 {
		c := found[0]
		fits, err := c.Complete(ctx, p.req)
		if fits || err != nil {
			return found, err
		}
		found = found[1:]
		if again, err := lowerLeaving(ctx, p, c, c.excess()); err != nil {
			return nil, err
		} else if again != nil {
			found = found.add(again)
		}
	}
	return resortToFrugalest(ctx, p, found)
}

// lowerLeaving returns a candidate that is like another and leaves that many bytes of each tier free; nil if none fits then, or
// if somebody else has decided what it is like.
func lowerLeaving(ctx context.Context, p *problem, c *Candidate, free [device.NumTiers]int64) (again *Candidate, err error) {
	less := *p.machine
	for tier, n := range free {
		if n > 0 {
			less.Capacity[tier] = max(less.Capacity[tier]-n, 1) // 0 would mean no such tier
		}
	}
	switch {
	case c.task != nil:
		again, err = c.task.onMachine(&less).lowerRoomiest(ctx, fastestPlan)
	case c.choice.b > 0:
		again, err = newBalancing(onMachine(p, &less), c).leastRecomputation(ctx, c.choice, 1)
	}
	if err != nil || again == nil {
		return nil, err
	}
	for _, prog := range again.Programs {
		prog.Capacity = p.machine.Capacity
	}
	return again, again.simulate(p.machine)
}

// excess returns by how many bytes the rank that needs most exceeds each tier; negative numbers are free.
func (c *Candidate) excess() (over [device.NumTiers]int64) {
	for t, n := range c.Needs() {
		over[t] = n - c.Program.Capacity[t]
	}
	return over
}
