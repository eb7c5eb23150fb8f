package search

import "github.com/athanor-llm/athanor/plan"

// Rival is a plan made by somebody else's rules, and its name.
type Rival struct {
	Name string
	Plan *plan.Plan
}

// rivals makes candidates of those rivals' plans that are for this batch and model, unless the user has decided
// something. So the result of a search is never slower than any of them.
func (s *search) rivals() error {
	if !s.req.Pins.Open() {
		return nil
	}
	for _, r := range s.req.Rivals {
		pl := r.Plan
		if pl.Ranks != s.ranks || pl.MicroBatch*pl.MicroBatches*pl.Replicas() != s.req.GlobalBatch || pl.State != s.req.State || pl.Validate(s.graph) != nil || !s.req.HeadFits(pl.HeadRows) {
			continue
		}
		s.say("planning: plans of other systems")
		c, err := Evaluate(s.ctx, s.req, pl, s.m, "as "+r.Name)
		if s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		s.evaluated++
		if err != nil { // it cannot be run, whoever made it
			continue
		}
		if c.Kind = c.Label; !c.Fits {
			continue
		}
		if err := s.keep(c); err != nil {
			return err
		}
	}
	return nil
}
