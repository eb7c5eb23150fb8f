package search

import (
	"cmp"
	"reflect"
	"slices"
)

// shortlist holds the best simulated candidates that are known, fastest first unless a stage has put another one
// first. It is a value: what adds to it returns another one.
type shortlist []*Candidate

// add returns the list with more candidates, sorted by time. It drops duplicates and slower candidates: programs
// are large, so only a few of each kind and a few in all are held, but always the best of every kind.
func (l shortlist) add(more ...*Candidate) shortlist {
	const most, ofKind = 24, 4
	list := slices.Concat(l, more)
	slices.SortStableFunc(list, func(a, b *Candidate) int { return cmp.Compare(a.Seconds(), b.Seconds()) })
	list = slices.CompactFunc(list, func(a, b *Candidate) bool { return a.sameAs(b) })
	count, seen, all := map[string]int{}, map[start]bool{}, 0
	return slices.DeleteFunc(list, func(c *Candidate) bool {
		count[c.Kind]++
		s := c.start()
		first := !seen[s]
		seen[s] = true
		if c.Plan.Ranks > 1 && count[c.Kind] > ofKind && !first || all >= most && count[c.Kind] > 1 {
			return true
		}
		all++
		return false
	})
}

// sameAs reports whether two candidates are the same plan, at the same prices.
func (c *Candidate) sameAs(other *Candidate) bool {
	return c.Seconds() == other.Seconds() && reflect.DeepEqual(c.Plan, other.Plan)
}

// timed returns the list sorted by what its candidates take at the machine's present prices.
func (l shortlist) timed(m *Machine) (shortlist, error) {
	for _, c := range l {
		if err := c.simulate(m); err != nil {
			return nil, err
		}
	}
	return l.add(), nil
}

// first returns the list with one of its candidates moved to the front.
func (l shortlist) first(best *Candidate) shortlist {
	rest := slices.DeleteFunc(slices.Clone(l), func(c *Candidate) bool { return c == best })
	return slices.Insert(rest, 0, best)
}

// fastest returns the best candidate, or nil.
func (l shortlist) fastest() *Candidate {
	if len(l) == 0 {
		return nil
	}
	return l[0]
}

// beats reports whether a candidate is known that takes at most the given seconds.
func (l shortlist) beats(bound float64) bool { return len(l) > 0 && bound >= l[0].Seconds() }

// kind is what candidates have in common that are improved apart from others.
type kind struct {
	b, group int
	r        residency
	deferred bool
	tables   bool
}

// kind returns a candidate's.
func (c *Candidate) kind() kind {
	return kind{c.choice.b, c.choice.group, c.choice.r, c.choice.deferred, c.choice.tables}
}

// start is what candidates have in common that came from the same beginning, or are one.
type start struct {
	kind
	ladder  int
	divided bool
}

// start returns a candidate's.
func (c *Candidate) start() start { return start{c.kind(), c.choice.ladder, c.choice.divided} }

// ofStarts returns the fastest candidate of each start, for so many of these.
func (l shortlist) ofStarts(most int) (list []*Candidate) {
	seen := map[start]bool{}
	for _, c := range l {
		if s := c.start(); !seen[s] && len(seen) < most {
			seen[s] = true
			list = append(list, c)
		}
	}
	return list
}

// ofKinds returns the fastest candidate of each combination of micro-batches, placement and time of updates, for so many of
// these.
func (l shortlist) ofKinds(most int) (list []*Candidate) {
	seen := map[kind]bool{}
	for _, c := range l {
		k := c.kind()
		if seen[k] || len(seen) == most {
			continue
		}
		seen[k] = true
		list = append(list, c)
	}
	return list
}
