package search

import (
	"context"
	"slices"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/lower"
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
	for _, thorough := range []bool{false, true} {
		if !thorough && p.machine.Shared > 0 { // programs were packed like this already
			continue
		}
		packed, err := repack(ctx, p, found[0], thorough)
		if err != nil {
			return nil, err
		}
		if packed != nil && packed.seconds <= longer*found[0].seconds {
			found = slices.Concat(shortlist{packed}, found[1:])
		}
	}
	return found, nil
}

// repack returns a candidate with new addresses for the programs that do not meet their lower bounds, nil if
// all do.
func repack(ctx context.Context, p *problem, c *Candidate, thorough bool) (*Candidate, error) {
	packed := *c
	packed.Programs, packed.Ranks = slices.Clone(c.Programs), slices.Clone(c.Ranks)
	opt := p.req.Options
	opt.Capacity, opt.Thorough, opt.Packings = c.Program.Capacity, thorough, &alloc.Cache{}
	for i, prog := range c.Ranks {
		if prog.Height == prog.Bound {
			continue
		}
		opt.Rank = prog.Rank
		lower, err := lower.Lower(ctx, p.graph, c.Plan, opt)
		if err != nil {
			return nil, err
		}
		if !lower.Fits() { // its addresses were searched for, see Complete
			continue
		}
		packed.Ranks[i] = lower
		if k := slices.Index(c.Programs, prog); k >= 0 {
			packed.Programs[k] = lower
		}
	}
	if slices.Equal(packed.Ranks, c.Ranks) {
		return nil, nil
	}
	packed.Program = packed.Programs[0]
	return &packed, packed.simulate(p.machine)
}
