package search

import (
	"math"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Steps of many micro-batches.
//
// Approach. Successive micro-batches do the same, except for the first, which finds the device cold, and the
// last, after which gradients are complete. So the search lowers steps of three, and for each missing
// micro-batch adds the time from the start of the second to the start of the third:
//
//	first | second | third, update
//	      |<------>|  x 29          of 32 micro-batches
//
// The cost of judging a plan thus does not grow with the batch. What is found is lowered and simulated in full
// in the end, so nothing that is reported of a plan is extrapolated.
//
// Memory is the same too, except for what waits for the end of the step, such as the gradients of a tied
// embedding's rows. How much each micro-batch adds is measured once per size, and this much is kept free.
//
// Known weakness: copies may not have settled into a rhythm by the third micro-batch. One plan in a thousand is
// therefore taken to be a fifth slower than it is.

// shortest is the number of micro-batches of a shortened step.
const shortest = 3

// shorten returns how many micro-batches of a step to lower.
func (s *search) shorten(pl *plan.Plan) int {
	if !s.short || !shortens(pl.MicroBatches, pl.Group) {
		return pl.MicroBatches
	}
	return shortest
}

// shortens reports whether steps of n micro-batches can be shortened.
func shortens(n, group int) bool { return n > shortest && group == 1 }

// growth returns the bytes of each tier that one more micro-batch adds to a step, however few.
func (s *search) growth(b int) ([device.NumTiers]int64, error) {
	if g, ok := s.grows[b]; ok {
		return g, nil
	}
	pl := plan.Plain(s.graph, b)
	pl.State, pl.Group = s.req.State, 1
	var bound [2][device.NumTiers]int64
	for i := range bound {
		pl.MicroBatches = shortest + i
		p, err := lower.Lower(s.ctx, s.graph, pl, s.req.Options)
		if err != nil {
			return bound[0], err
		}
		bound[i] = p.Bound
	}
	for t := range bound[1] {
		bound[1][t] -= bound[0][t]
	}
	s.grows[b] = bound[1]
	return bound[1], nil
}

// judge evaluates a plan of the search, shortened where possible.
func (s *search) judge(pl *plan.Plan, label string) (*Candidate, error) {
	req, m := *s.req, *s.m
	req.Options.Reject, req.Options.Quick = true, s.m.Shared == 0 // ranks that share memory have what others leave
	missing := pl.MicroBatches
	pl.MicroBatches = s.shorten(pl)
	if missing -= pl.MicroBatches; missing > 0 {
		grows, err := s.growth(pl.MicroBatch)
		if err != nil {
			return nil, err
		}
		for t, g := range grows {
			if m.Capacity[t] > 0 {
				m.Capacity[t] = max(m.Capacity[t]-int64(missing)*g, 1) // 0 would mean no such tier
			}
		}
		if m.Shared > 0 {
			m.Shared = max(m.Shared-int64(missing*s.ranks)*(grows[device.DeviceTier]+grows[device.HostTier]), 1)
		}
	}
	c, err := Evaluate(s.ctx, &req, pl, &m, label)
	if err == nil {
		c.missing = missing
	}
	return c, err
}

// period returns the seconds from the start of a shortened step's second micro-batch to
// that of its third.
func (c *Candidate) period() float64 {
	start := [shortest]float64{math.Inf(1), math.Inf(1), math.Inf(1)}
	for i := range c.Program.Instrs {
		if in := &c.Program.Instrs[i]; in.Stream == device.Compute && in.Key.Dir == program.Forward {
			at := &start[in.Key.Micro]
			*at = min(*at, c.spans[0][i].Start)
		}
	}
	return start[2] - start[1]
}

// times returns how often an instruction runs in the whole step.
func (c *Candidate) times(in *program.Instr) float64 {
	if in.Key.Micro == 1 {
		return float64(1 + c.missing)
	}
	return 1
}

// lengthen replaces shortened candidates by whole ones, the fastest of each kind. One that no longer fits,
// since it packs a little worse, keeps fewer of its activations; it is dropped if that does not help.
func (s *search) lengthen() error {
	type kind struct {
		name  string
		b, gr int
	}
	short := s.found
	s.found, s.short = nil, false
	known := map[kind]bool{}
	for _, c := range short {
		k := kind{c.Kind, c.choice.b, c.choice.group}
		if known[k] || s.tired() {
			continue
		}
		if c.missing > 0 {
			var err error
			if c, err = s.evaluate(c.choice); err != nil {
				return err
			}
			if !c.Fits {
				b := &balancing{search: s, best: c, levels: s.below(c.choice)}
				if c, err = b.fit(c.choice, 1); err != nil {
					return err
				}
			}
			if c == nil {
				continue
			}
		}
		known[k] = true
		if err := s.keep(c); err != nil {
			return err
		}
	}
	return nil
}
