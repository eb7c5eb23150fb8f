package search

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/program"
)

// packFastest repacks the chosen plan's memory where heuristics have not met the lower bound: with all heuristics, if
// the search took the first addresses that fit, and then by exact search. Tighter packings reuse memory sooner,
// which adds waits; one that makes the step slower is rejected.
func packFastest(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	const (
		longer = 1.001 // bound on the ratio of step times
		most   = 16    // bound on programs lowered again; each search takes a tenth of a second
	)
	if len(found[0].Ranks) > most {
		return found, nil
	}
	c := found[0]
	var lowered [2][]*program.Program
	var errs [2]error
	var both sync.WaitGroup
	for i, thorough := range []bool{false, true} {
		if thorough || p.machine.Shared == 0 { // else programs were packed with all heuristics already
			both.Go(func() { lowered[i], errs[i] = lowerAgain(ctx, p, c, thorough) })
		}
	}
	both.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	for _, list := range lowered {
		packed := c.repacked(list)
		if packed == nil {
			continue
		}
		if err := packed.simulate(p.machine); err != nil {
			return nil, err
		}
		if packed.seconds <= longer*c.seconds {
			c = packed
		}
	}
	return slices.Concat(shortlist{c}, found[1:]), nil
}

// lowerAgain returns, for each rank, a candidate's program with other addresses, nil where it meets its lower bound or they
// do not fit: its own were searched for then, see Complete.
func lowerAgain(ctx context.Context, p *problem, c *Candidate, thorough bool) ([]*program.Program, error) {
	list := make([]*program.Program, len(c.Ranks))
	opt := p.req.Options
	opt.Capacity, opt.Thorough, opt.Packings = c.Program.Capacity, thorough, &alloc.Cache{}
	for i, prog := range c.Ranks {
		if prog.Height == prog.Bound {
			continue
		}
		opt.Rank = prog.Rank
		other, err := lower.Lower(ctx, p.graph, c.Plan, opt)
		if err != nil {
			return nil, err
		}
		if other.Fits() {
			list[i] = other
		}
	}
	return list, nil
}

// repacked returns the candidate with other programs for the ranks whose own do not meet their lower bounds, nil if there
// are none.
func (c *Candidate) repacked(list []*program.Program) *Candidate {
	packed := *c
	packed.Programs, packed.Ranks = slices.Clone(c.Programs), slices.Clone(c.Ranks)
	for i, other := range list {
		prog := c.Ranks[i]
		if other == nil || prog.Height == prog.Bound {
			continue
		}
		packed.Ranks[i] = other
		if k := slices.Index(c.Programs, prog); k >= 0 {
			packed.Programs[k] = other
		}
	}
	if slices.Equal(packed.Ranks, c.Ranks) {
		return nil
	}
	packed.Program = packed.Programs[0]
	return &packed
}
