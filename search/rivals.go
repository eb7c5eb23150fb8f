package search

import (
	"context"
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/plan"
)

// Rival is a plan made by somebody else's rules, and its name.
type Rival struct {
	Name string
	Plan *plan.Plan
	Way  bool // Name is that of a way to divide a model among ranks
}

// label describes a rival's plan by its name or, where that says nothing to a user of one rank, by what it does.
func (r Rival) label() string {
	pl := r.Plan
	if !r.Way || pl.Ranks > 1 {
		return "as " + r.Name
	}
	where, most := "", 0
	for _, at := range residencies {
		n := 0
		for _, c := range pl.Chunks {
			if c.Weights == at.weights && c.Grads == at.grads && c.State == at.state {
				n++
			}
		}
		if n > most {
			where, most = at.label, n
		}
	}
	if most < len(pl.Chunks) {
		where += fmt.Sprintf(" for %d of %d chunks", most, len(pl.Chunks))
	}
	return strings.TrimPrefix(fmt.Sprintf("%s, micro-batch %d x %d", where, pl.MicroBatch, pl.MicroBatches), ", ")
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
		p.told.say(planning+": plans of other systems", found)
		c, err := Evaluate(ctx, p.req, r.Plan, p.machine, r.label())
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		p.told.evaluated++
		if err != nil { // it cannot be run, whoever made it
			continue
		}
		if c.Kind = "as " + r.Name; !c.Fits {
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
