package search

import (
	"context"
	"reflect"
	"slices"
)

// measureFastest replaces predictions by measurements where they decide: it times the
// fastest candidate's operators and simulates all candidates again, until the
// fastest is one that was timed.
func measureFastest(_ context.Context, p *problem, found shortlist) (shortlist, error) {
	if p.machine.Measure == nil {
		return found, nil
	}
	const rounds = 6
	measured := map[*Candidate]bool{}
	for range rounds {
		c := found[0]
		if measured[c] {
			return found, nil
		}
		measured[c] = true
		if err := measure(p, c); err != nil {
			return nil, err
		}
		var err error
		if found, err = found.timed(p.machine); err != nil {
			return nil, err
		}
	}
	// Prefer a timed candidate over one that only looks faster.
	if i := slices.IndexFunc(found, func(c *Candidate) bool { return measured[c] }); i > 0 {
		found = found.first(found[i])
	}
	return found, nil
}

// measure times a candidate's operators.
func measure(p *problem, c *Candidate) error {
	p.told.say("timing the operators of: "+c.Label, nil)
	return p.machine.Measure(c)
}

// repeatWithPrices makes candidates comparable before trials. Operator times depend on the sequences per micro-batch,
// and so far only the fastest candidates' operators were timed. It times those of the best candidates of other
// sizes, then repeats the search, since decisions based on estimates, and those of policies' formulas, may
// change. For policies it does so without trials too.
func repeatWithPrices(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	const near = 1.5 // over the fastest
	trial := p.machine.Trial
	tried := trial != nil && trial.Worth(found[0].Seconds()) >= found[0].roundTime()*2
	if p.machine.Measure == nil || !tried && p.req.Pins.Policy == "" {
		return found, nil
	}
	timed := map[int]bool{}
	for _, c := range found {
		if b := c.Plan.MicroBatch; !timed[b] && c.Seconds() < near*found[0].Seconds() {
			timed[b] = true
			if err := measure(p, c); err != nil {
				return nil, err
			}
		}
	}
	p.told.lowered = 0
	now, err := planUniform(ctx, p, nil)
	if err != nil {
		return nil, err
	}
	all := slices.Clone(now)
	for _, c := range found { // the earlier ones
		if !slices.ContainsFunc(all, func(other *Candidate) bool { return reflect.DeepEqual(other.Plan, c.Plan) }) {
			all = append(all, c)
		}
	}
	if all, err = all.timed(p.machine); err != nil {
		return nil, err
	}
	return measureFastest(ctx, p, all)
}
