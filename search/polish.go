package search

import (
	"cmp"
	"context"
	"slices"
)

// The division of memory (balance.go) and the activation policies (activations.go) depend on each other:
// swapping takes link time from weights, and the memory that it frees may be worth more as cache. So the two
// are improved in turn for the best candidates, until neither helps.

// polish improves the fastest few of the candidates, which are one of each kind: by one turn, or for as long as
// turns help if that makes the candidate the fastest of all.
func polish(ctx context.Context, p *problem, found shortlist, list []*Candidate) (shortlist, error) {
	const helps, most = 1e-3, 5
	slices.SortStableFunc(list, func(a, b *Candidate) int { return cmp.Compare(a.Seconds(), b.Seconds()) })
	for _, c := range list[:min(len(list), most)] {
		for {
			better, err := redivide(ctx, p, found, c)
			if err != nil {
				return nil, err
			}
			if better != c {
				found = found.add(better)
			}
			if better.Seconds() >= c.Seconds()*(1-helps) || better != found[0] {
				break
			}
			c = better
		}
	}
	return found, nil
}

// redivide returns a candidate with its memory divided anew, given its present activation policies, and then with
// these refined.
func redivide(ctx context.Context, p *problem, found shortlist, c *Candidate) (*Candidate, error) {
	r := newRefinement(p, c)
	if r.needless(found) {
		return c, nil
	}
	divides := !p.req.Pins.dividesMemory()
	if divides {
		b := newBalancing(p, c)
		if err := b.moveMemory(ctx, 1); err != nil {
			return nil, err
		}
		r.best = b.best
	}
	if p.refinesActivations() {
		if err := r.tryMoves(ctx); err != nil {
			return nil, err
		}
	}
	if divides { // last, since updates take no memory, and parts of layers what is left
		b := newBalancing(p, r.best)
		if err := b.divideParts(ctx); err != nil {
			return nil, err
		}
		r.best = b.best
	}
	return r.best, nil
}
