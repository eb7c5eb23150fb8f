package search

import (
	"context"
	"math"
	"slices"
	"sync"

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

// shortens reports whether steps of n micro-batches can be shortened.
func shortens(n, group int) bool { return n > shortest && group == 1 }

// shortens reports whether any steps can be shortened.
func (p *problem) shortens() bool {
	return slices.ContainsFunc(p.microBatches(), func(b int) bool {
		return slices.ContainsFunc(p.groups(b), func(group int) bool { return shortens(p.batch/b, group) })
	})
}

// growths are the bytes of each tier that one more micro-batch adds to a step, however few, by sequences per
// micro-batch. They follow from the graph, the state's format and the options of lowering alone, so they hold for
// all problems that differ in other decisions, in the machine or in its prices.
type growths struct {
	mu    sync.Mutex
	known map[int][device.NumTiers]int64
}

// growth returns the growth of a step with micro-batches of b sequences.
func (p *problem) growth(ctx context.Context, b int) ([device.NumTiers]int64, error) {
	p.growths.mu.Lock()
	defer p.growths.mu.Unlock()
	if g, ok := p.growths.known[b]; ok {
		return g, nil
	}
	pl := plan.Plain(p.graph, b)
	pl.Optimizer, pl.State, pl.Group = p.req.Optimizer, p.req.State, 1
	var bound [2][device.NumTiers]int64
	for i := range bound {
		pl.MicroBatches = shortest + i
		prog, err := lower.Lower(ctx, p.graph, pl, p.req.Options)
		if err != nil {
			return bound[0], err
		}
		bound[i] = prog.Bound
	}
	for t := range bound[1] {
		bound[1][t] -= bound[0][t]
	}
	if p.growths.known == nil {
		p.growths.known = map[int][device.NumTiers]int64{}
	}
	p.growths.known[b] = bound[1]
	return bound[1], nil
}

// judge evaluates a plan of the search, shortened or not. What the missing micro-batches would add is kept free.
func (p *problem) judge(ctx context.Context, pl *plan.Plan, label string, short bool) (*Candidate, error) {
	req, m := *p.req, *p.machine
	req.Options.Reject, req.Options.Quick = true, m.Shared == 0 // ranks that share memory have what others leave
	req.Options.Unordered = p.untimed
	if p.untimed && pl.Group > shortest {
		c, err := judgeFew(ctx, &req, pl, &m, label)
		if err != nil || c != nil {
			return c, err
		}
	}
	if !short {
		return Evaluate(ctx, &req, pl, &m, label)
	}
	missing := pl.MicroBatches - shortest
	pl.MicroBatches = shortest
	grows, err := p.growth(ctx, pl.MicroBatch)
	if err != nil {
		return nil, err
	}
	for t, g := range grows {
		if m.Capacity[t] > 0 {
			m.Capacity[t] = max(m.Capacity[t]-int64(missing)*g, 1) // 0 would mean no such tier
		}
	}
	if m.Shared > 0 {
		m.Shared = max(m.Shared-int64(missing*p.ranks)*(grows[device.DeviceTier]+grows[device.HostTier]), 1)
	}
	c, err := Evaluate(ctx, &req, pl, &m, label)
	if err == nil {
		c.missing = missing
	}
	return c, err
}

// judgeFew returns the candidate of a plan for fewer of the micro-batches that go through a layer together, if not even these
// fit; else nil. What it needs is a lower bound on what the plan needs.
func judgeFew(ctx context.Context, req *Request, pl *plan.Plan, m *Machine, label string) (*Candidate, error) {
	few := *pl
	few.Group, few.MicroBatches = shortest, shortest
	c, err := Evaluate(ctx, req, &few, m, label)
	if err != nil || c.Fits || slices.ContainsFunc(c.Programs, (*program.Program).MayFit) {
		return nil, err
	}
	c.Plan = pl
	return c, nil
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

// lengthenSteps replaces shortened candidates by whole ones, the fastest of each kind. One that no longer fits is
// dropped.
func lengthenSteps(ctx context.Context, p *problem, short shortlist) (found shortlist, err error) {
	type kind struct {
		name     string
		b, group int
		deferred bool
	}
	known := map[kind]bool{}
	for _, c := range short {
		k := kind{c.Kind, c.choice.b, c.choice.group, c.choice.deferred}
		if known[k] || len(found) > 0 && p.told.exhausted() {
			continue
		}
		if c.missing > 0 {
			if len(found) > 0 && c.Seconds() > raceMargin(0)*found[0].Seconds() { // not worth lowering in full
				continue
			}
			if c, err = lengthen(ctx, p, c.choice); err != nil {
				return nil, err
			}
			if c == nil {
				continue
			}
		}
		known[k] = true
		found = found.add(c)
	}
	return found, nil
}

// lengthen returns the candidate of a choice with a whole step. If it does not fit, since it packs a little worse,
// it keeps fewer of its activations; nil if that does not help.
func lengthen(ctx context.Context, p *problem, ch choice) (*Candidate, error) {
	ch.short = false
	c, err := p.evaluate(ctx, ch)
	if err == nil && !c.Fits {
		b := &balancing{p: p, best: c, levels: p.rungsBelow(ch)}
		c, err = b.leastRecomputation(ctx, ch, 1)
	}
	if err != nil || c == nil {
		return nil, err
	}
	return c, c.simulate(p.machine)
}
