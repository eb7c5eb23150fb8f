package search

import (
	"cmp"
	"context"
	"slices"
)

// Polish
//
// The division of memory (balance.go) and the activation policies (activations.go) depend on each other:
// swapping takes link time from weights, and the memory that it frees may be worth more as cache. So the two
// are improved in turn for the best candidates, until neither helps.
//
// Approach. The fastest candidates run a race: changes to long runs of layers first, then to ever shorter ones,
// after each of which the slower part of the field drops out. What a candidate can gain shows in long runs, and
// is more than candidates are apart: those whose links are busy gain a tenth, those whose cores are busy nothing.
//
// Example: 20 billion parameters on two GPUs. Of five, the third at first is the first after runs of half the layers;
// the two that were ahead of it gain nothing.
//
// Which optimum is near depends on the prefetch distance, by up to a twentieth of the step. So with the effort that is left the
// candidates of the race begin anew, a unit farther or nearer in the same memory.
//
// Known weakness: cutting layers gains up to a twentieth and comes last, so the race does not see it; and little effort is
// left where programs are long.

// polishing is a candidate that is being polished.
type polishing struct {
	*refinement
	start *Candidate
	size  int // of the runs of layers that are next
}

// newPolishing begins to polish a candidate.
func newPolishing(r *refinement) *polishing {
	return &polishing{refinement: r, start: r.best, size: r.p.graph.Model.Layers}
}

// polish improves the fastest few of the candidates, which are one of each kind. Who is left of the race is finished first,
// and who dropped out last is next, as far as the effort allows.
func polish(ctx context.Context, p *problem, found shortlist, list []*Candidate) (shortlist, error) {
	const most, finalists = 5, 2
	shortFirst(list, itself, (*Candidate).Seconds)
	var starts []*Candidate
	var field []*polishing
	for _, c := range list[:min(len(list), most)] {
		if r := newRefinement(p, c); !r.needless(found) && c.promise() <= behind*found[0].Seconds() {
			field, starts = append(field, newPolishing(r)), append(starts, c)
		}
	}
	current := func(c *polishing) *Candidate { return c.best }
	going := field
	for ; len(going) > finalists && going[0].size > 0; going = going[:(len(going)+1)/2] {
		for _, c := range going {
			if err := c.tryNextMoves(ctx); err != nil {
				return nil, err
			}
			found = c.addTo(found)
		}
		shortFirst(going, current, (*Candidate).promise)
	}
	shortFirst(going, current, (*Candidate).Seconds)
	for _, c := range field {
		for more := true; more; {
			err := c.finish(ctx)
			if err != nil {
				return nil, err
			}
			found = c.addTo(found)
			if more, err = c.beginTurn(ctx, found); err != nil {
				return nil, err
			}
		}
	}
	return polishTwins(ctx, p, found, starts)
}

// polishTwins polishes the candidates with other prefetch distances, where something is recomputed that might be swapped.
func polishTwins(ctx context.Context, p *problem, found shortlist, of []*Candidate) (shortlist, error) {
	const little = 1e-2 // of a step
	if found[0].Repeated() < little {
		return found, nil
	}
	for _, c := range of {
		for _, d := range []int{1, -1} {
			twin, err := prefetchTwin(ctx, p, c, d)
			if err != nil {
				return nil, err
			}
			if twin == nil {
				continue
			}
			t := newPolishing(newRefinement(p, twin))
			if err := t.finish(ctx); err != nil {
				return nil, err
			}
			found = found.add(t.best)
		}
	}
	return found, nil
}

// prefetchTwin returns a candidate that prefetches farther by some units, in about the same memory, which it then divides
// anew; nil if none fits.
func prefetchTwin(ctx context.Context, p *problem, c *Candidate, by int) (*Candidate, error) {
	const step = 4
	if p.req.Pins.dividesMemory() {
		return nil, nil
	}
	b := newBalancing(p, c)
	twin, err := b.move(ctx, spend{prefetch: by, spare: -int64(by)}, 1)
	if err != nil || twin == nil {
		return nil, err
	}
	b.best = twin
	if err := b.moveMemory(ctx, step); err != nil {
		return nil, err
	}
	err = b.moveBy(ctx, 1) // what the first units of memory could not take, the last may
	return b.best, err
}

// tryNextMoves tries changes to the runs of layers that are next.
func (c *polishing) tryNextMoves(ctx context.Context) error {
	size := c.size
	c.size /= 2
	return c.tryMoves(ctx, size)
}

// finish tries changes to all runs that are left, exchanges what is left of memory, and divides it and updates in parts: last,
// since updates take no memory, and parts of layers what is left.
func (c *polishing) finish(ctx context.Context) error {
	for c.size > 0 {
		if err := c.tryNextMoves(ctx); err != nil {
			return err
		}
	}
	if c.p.refinesActivations() {
		if err := c.exchangeResidents(ctx); err != nil {
			return err
		}
	}
	return c.redivide(ctx, (*balancing).divideParts)
}

// redivide divides the memory of the candidate in some way, given its present activation policies.
func (c *polishing) redivide(ctx context.Context, divide func(*balancing, context.Context) error) error {
	if c.p.req.Pins.dividesMemory() {
		return nil
	}
	b := newBalancing(c.p, c.best)
	err := divide(b, ctx)
	c.best = b.best
	return err
}

// addTo returns the list with what the candidate has become.
func (c *polishing) addTo(found shortlist) shortlist {
	if c.best == c.start {
		return found
	}
	return found.add(c.best)
}

// beginTurn begins to polish a candidate once more, if the last time helped and made it the fastest of all, and reports whether it
// did: it divides its memory anew, given its present activation policies.
func (c *polishing) beginTurn(ctx context.Context, found shortlist) (begun bool, err error) {
	const helps = 3e-3
	r := newRefinement(c.p, c.best)
	if c.best.Seconds() >= c.start.Seconds()*(1-helps) || c.best != found[0] || r.needless(found) {
		return false, nil
	}
	*c = *newPolishing(r)
	return true, c.redivide(ctx, func(b *balancing, ctx context.Context) error { return b.moveMemory(ctx, 1) })
}

// shortFirst sorts by some time of candidates, and those that are about as fast by the length of their programs: effort goes
// further with short ones.
func shortFirst[C any](list []C, of func(C) *Candidate, time func(*Candidate) float64) {
	const alike = 1.01
	slices.SortStableFunc(list, func(a, b C) int { return cmp.Compare(time(of(a)), time(of(b))) })
	for len(list) > 0 {
		near, most := 1, alike*time(of(list[0]))
		for near < len(list) && time(of(list[near])) < most {
			near++
		}
		slices.SortStableFunc(list[:near], func(a, b C) int { return cmp.Compare(len(of(a).Program.Instrs), len(of(b).Program.Instrs)) })
		list = list[near:]
	}
}

// itself returns a candidate.
func itself(c *Candidate) *Candidate { return c }
