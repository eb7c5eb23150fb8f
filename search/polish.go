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
// Known weakness: cutting layers gains up to a twentieth and comes last, so the race does not see it; and who has gained much but
// is not the fastest takes no second turn, even where effort is left.

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
	var field []*polishing
	for _, c := range list[:min(len(list), most)] {
		if r := newRefinement(p, c); !r.needless(found) && c.promise() <= behind*found[0].Seconds() {
			field = append(field, newPolishing(r))
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
	return found, nil
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
