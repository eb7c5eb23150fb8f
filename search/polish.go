package search

import (
	"cmp"
	"slices"

	"github.com/athanor-llm/athanor/plan"
)

// The division of memory (balance.go) and the activation policies (activations.go) depend on each other:
// swapping takes link time from weights, and the memory that it frees may be worth more as cache. So the two
// are improved in turn for the best candidates, until neither helps.

// polish improves the fastest few of the candidates, which are one of each kind: by one turn, or for as long as
// turns help if that makes the candidate the fastest of all.
func (s *search) polish(list []*Candidate) error {
	const helps, most = 1e-3, 5
	slices.SortStableFunc(list, func(a, b *Candidate) int { return cmp.Compare(a.Seconds(), b.Seconds()) })
	for _, c := range list[:min(len(list), most)] {
		for {
			was := c.Seconds()
			var err error
			if c, err = s.turn(c); err != nil {
				return err
			}
			if c.Seconds() >= was*(1-helps) || c != s.found[0] {
				break
			}
		}
	}
	return nil
}

// turn redivides a candidate's memory, given its present activation policies, and then refines these.
func (s *search) turn(c *Candidate) (*Candidate, error) {
	r := s.refinement(c)
	if r.needless() {
		return c, nil
	}
	if s.divides() {
		b := s.around(c)
		if err := b.descend(1); err != nil {
			return nil, err
		}
		r.best = b.best
	}
	if s.refines() {
		if err := r.moves(); err != nil {
			return nil, err
		}
	}
	if s.divides() { // last, since it takes no memory
		b := s.around(r.best)
		if err := b.tuneUpdates(); err != nil {
			return nil, err
		}
		r.best = b.best
	}
	if r.best == c {
		return c, nil
	}
	return r.best, s.keep(r.best)
}

// around begins to divide a candidate's memory, with activation policies around its present ones.
func (s *search) around(c *Candidate) *balancing {
	ch := c.choice
	return &balancing{search: s, best: c, levels: slices.Concat(s.above(ch), [][]plan.Retention{ch.keep}, s.below(ch))}
}

// above lists policies with more memory and less work than a choice's: all layers keep everything, then ever
// fewer of the last ones.
func (s *search) above(ch choice) (ladder [][]plan.Retention) {
	most := s.retentions(ch.b, ch.group)[0][0]
	for i := range ch.keep {
		ladder = append(ladder, slices.Concat(ch.keep[:i], most[i:]))
	}
	return slices.DeleteFunc(slices.CompactFunc(ladder, slices.Equal), func(keep []plan.Retention) bool { return slices.Equal(keep, ch.keep) })
}

// below lists policies with less memory and more work than a choice's: ever more of the first layers have the
// most frugal policy.
func (s *search) below(ch choice) (ladder [][]plan.Retention) {
	list := s.retentions(ch.b, ch.group)[0]
	least := list[len(list)-1]
	for i := range ch.keep {
		ladder = append(ladder, slices.Concat(least[:i+1], ch.keep[i+1:]))
	}
	return slices.DeleteFunc(slices.CompactFunc(ladder, slices.Equal), func(keep []plan.Retention) bool { return slices.Equal(keep, ch.keep) })
}
