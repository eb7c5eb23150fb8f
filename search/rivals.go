package search

import (
	"context"

	"github.com/athanor-llm/athanor/plan"
)

// Rival is a plan made by somebody else's rules, and its name.
type Rival struct {
	Name string
	Plan *plan.Plan
}

// addRivals makes candidates of those rivals' plans that are for this batch and model, unless the user has decided
// something. So the result of a search is never slower than any of them.
func addRivals(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	if !p.req.Pins.Open() {
		return found, nil
	}
	for _, r := range p.req.Rivals {
		if !p.admits(r.Plan) {
			continue
		}
		p.told.say("planning: plans of other systems")
		c, err := Evaluate(ctx, p.req, r.Plan, p.machine, "as "+r.Name)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		p.told.evaluated++
		if err != nil { // it cannot be run, whoever made it
			continue
		}
		if c.Kind = c.Label; !c.Fits {
			continue
		}
		if err := c.simulate(p.machine); err != nil {
			return nil, err
		}
		found = found.add(c)
	}
	return found, nil
}

// admits reports whether a plan is one for this problem.
func (p *problem) admits(pl *plan.Plan) bool {
	return pl.Ranks == p.ranks && pl.MicroBatch*pl.MicroBatches*pl.Replicas() == p.req.GlobalBatch && pl.State == p.req.State &&
		pl.Validate(p.graph) == nil && p.req.HeadFits(pl.HeadRows)
}
