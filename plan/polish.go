package plan

import (
	"cmp"
	"slices"

	"github.com/athanor-llm/athanor/program"
)

// The division of memory (balance.go) and the activations (activations.go) depend on each other:
// what is swapped takes the link from weights, and memory that it frees is worth a larger cache. So
// the best candidates are improved by turns, until neither helps.

// polish improves the fastest of the candidates by turns, one of each kind; as long as it helps
// if that makes it the fastest of all.
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

// turn divides a candidate's memory again, with the activations that it has now, and refines these
// again.
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
	if s.divides() { // at last, since it takes no memory
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

// around begins to divide a candidate's memory, with activations like those that it has.
func (s *search) around(c *Candidate) *balancing {
	ch := c.choice
	return &balancing{search: s, best: c, levels: slices.Concat(s.above(ch), [][]program.Retention{ch.keep}, s.below(ch))}
}

// above lists policies with more memory and less work than a choice's: layers keep everything, all
// of them, then fewer of the last ones.
func (s *search) above(ch choice) (ladder [][]program.Retention) {
	most := s.retentions(ch.b, ch.group)[0][0]
	for i := range ch.keep {
		ladder = append(ladder, slices.Concat(ch.keep[:i], most[i:]))
	}
	return slices.DeleteFunc(slices.CompactFunc(ladder, slices.Equal), func(keep []program.Retention) bool { return slices.Equal(keep, ch.keep) })
}

// below lists policies with less memory and more work than a choice's: more and more of the first
// layers take the most frugal policy.
func (s *search) below(ch choice) (ladder [][]program.Retention) {
	list := s.retentions(ch.b, ch.group)[0]
	least := list[len(list)-1]
	for i := range ch.keep {
		ladder = append(ladder, slices.Concat(least[:i+1], ch.keep[i+1:]))
	}
	return slices.DeleteFunc(slices.CompactFunc(ladder, slices.Equal), func(keep []program.Retention) bool { return slices.Equal(keep, ch.keep) })
}
