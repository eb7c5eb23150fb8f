package search

import (
	"context"
	"slices"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// Candidate is a plan with its programs and what is known of its memory and time. While the search compares
// candidates, plan and programs may have fewer micro-batches than the step (missing); in a result they are
// whole.
type Candidate struct {
	Plan *plan.Plan
	// Programs are those of the ranks of the first pipeline, or of those that share the
	// first sequences; else of the rank with the largest shards. Other ranks do the same
	// with other sequences and shards. Program and Timeline are the first rank's. Ranks holds all
	// programs; only the result of a search has it.
	Programs  []*program.Program
	Ranks     []*program.Program
	Program   *program.Program
	Timeline  *sim.Timeline
	Timelines []*sim.Timeline // of Programs, on one clock
	Label     string          // description for the user
	Kind      string          // equal for plans that differ in sizes only
	Fits      bool
	Tried     float64 // seconds per step, median of trials; 0: not tried
	trials    []float64
	seconds   float64
	spans     [][]device.Span // of Programs
	choice    choice          // the search's decisions; zero for pipelines and rivals
	task      *task           // of a pipeline that can be lowered again with less memory; nil: no such
	missing   int             // micro-batches that the step has beyond those of Plan, see short.go
	beyond    float64         // seconds that the missing micro-batches take
	shared    int64           // the machine's, without what the missing micro-batches would add
}

// Seconds returns the simulated seconds per step.
func (c *Candidate) Seconds() float64 { return c.seconds }

// Evaluate lowers a plan and checks its memory. It does not set the time; see Time.
func Evaluate(ctx context.Context, req *Request, pl *plan.Plan, m *Machine, label string) (*Candidate, error) {
	opt := req.Options
	opt.Capacity = m.Capacity
	c := &Candidate{Plan: pl, Label: label, Fits: true, shared: m.Shared}
	first := 0
	if pl.Partners() == 1 && pl.Ranks > 1 {
		var err error
		if first, err = lower.Largest(req.Graph, pl); err != nil {
			return nil, err
		}
	}
	for r := range pl.Partners() {
		opt.Rank = first + r
		p, err := lowerToFit(ctx, req.Graph, pl, opt)
		if err != nil {
			return nil, err
		}
		c.Fits = c.Fits && p.Fits()
		c.Programs = append(c.Programs, p)
	}
	if m.Shared > 0 && c.bytesTogether() > m.Shared {
		c.Fits = false
	}
	c.Program = c.Programs[0]
	return c, nil
}

// lowerToFit lowers a plan for a rank. Packing is luck, so other addresses are searched for where those that are found do not
// fit and others might, unless the search rejects such plans.
func lowerToFit(ctx context.Context, g *graph.Graph, pl *plan.Plan, opt lower.Options) (*program.Program, error) {
	p, err := lower.Lower(ctx, g, pl, opt)
	for _, opt.Thorough = range []bool{false, true} {
		if err != nil || opt.Reject || p.Fits() || !p.MayFit() {
			break
		}
		opt.Quick = true // any addresses that fit will do
		p, err = lower.Lower(ctx, g, pl, opt)
	}
	return p, err
}

// bytesTogether returns the bytes of device and host that all ranks need.
func (c *Candidate) bytesTogether() (sum int64) {
	for _, p := range c.Programs {
		sum += (p.Height[device.DeviceTier] + p.Height[device.HostTier]) * int64(c.Plan.Ranks/len(c.Programs))
	}
	return sum
}

// Complete lowers the programs of all ranks and reports whether each fits: shards
// differ in size.
func (c *Candidate) Complete(ctx context.Context, req *Request) (bool, error) {
	if c.Ranks != nil {
		return c.Fits, nil
	}
	opt := req.Options
	opt.Capacity, opt.Packings = c.Program.Capacity, &alloc.Cache{}
	for opt.Rank = range c.Plan.Ranks {
		if k := slices.IndexFunc(c.Programs, func(p *program.Program) bool { return p.Rank == opt.Rank }); k >= 0 {
			c.Ranks = append(c.Ranks, c.Programs[k])
			continue
		}
		p, err := lowerToFit(ctx, req.Graph, c.Plan, opt)
		if err != nil {
			return false, err
		}
		c.Fits = c.Fits && p.Fits()
		c.Ranks = append(c.Ranks, p)
	}
	return c.Fits, nil
}

// ranks returns a program for every rank. Unknown ones are taken from the first
// partners: others differ in the sizes of shards only.
func (c *Candidate) ranks() []*program.Program {
	list := slices.Clone(c.Ranks)
	for len(list) < c.Plan.Ranks {
		list = append(list, c.Programs[len(list)%len(c.Programs)])
	}
	return list
}

// Time simulates a candidate: the ranks of a pipeline on one clock, else one rank
// for all.
func (c *Candidate) Time(m *Machine) error {
	if err := c.simulate(m); err != nil {
		return err
	}
	return c.draw()
}

// simulate finds when each instruction runs, and the seconds per step.
func (c *Candidate) simulate(m *Machine) (err error) {
	if len(c.Programs) > 1 {
		c.spans, err = sim.SpansFirst(c.Programs, c.Plan.Ranks, m.dealt(c.Plan.Depth(), c.Plan.PerSequence()))
	} else {
		c.spans = make([][]device.Span, 1)
		c.spans[0], err = sim.SpansAlike(c.Program, c.Plan.Ranks, m.Cost)
	}
	if err != nil {
		return err
	}
	c.seconds = 0
	for _, spans := range c.spans {
		for _, s := range spans {
			c.seconds = max(c.seconds, s.End)
		}
	}
	if c.missing > 0 {
		c.beyond = float64(c.missing) * c.period()
		c.seconds += c.beyond
	}
	return nil
}

// draw derives the timelines from the simulation.
func (c *Candidate) draw() (err error) {
	if c.Timelines, err = sim.NewAll(c.Programs, c.spans); err == nil {
		c.Timeline = c.Timelines[0]
	}
	return err
}

// Idle returns the share of the step in which compute streams are idle, averaged
// over ranks: in a pipeline, mostly its bubble.
func (c *Candidate) Idle() float64 { return 1 - c.share(func(*program.Instr) bool { return true }) }

// Repeated returns the share of the step that compute streams spend on
// recomputation.
func (c *Candidate) Repeated() float64 {
	return c.share(func(in *program.Instr) bool { return in.Key.Dir == program.Recompute })
}

// transferSeconds returns for how many seconds streams other than the devices' compute streams are busy, summed over
// streams and ranks.
func (c *Candidate) transferSeconds() (sum float64) {
	for r, spans := range c.spans {
		for i, span := range spans {
			if c.Programs[r].Instrs[i].Stream != device.Compute {
				sum += span.End - span.Start
			}
		}
	}
	return sum
}

// share returns the share of the step that compute streams spend on the selected
// instructions.
func (c *Candidate) share(kind func(*program.Instr) bool) float64 {
	var sum float64
	for r, spans := range c.spans {
		for i, span := range spans {
			if in := &c.Programs[r].Instrs[i]; in.Stream == device.Compute && kind(in) {
				sum += span.End - span.Start
			}
		}
	}
	return sum / float64(len(c.spans)) / c.seconds
}

// Needs returns, for each tier, the most memory that any rank needs, in bytes.
func (c *Candidate) Needs() (need [device.NumTiers]int64) {
	for _, p := range c.ranks() {
		for t, h := range p.Height {
			need[t] = max(need[t], h)
		}
	}
	return need
}

// PlainBytes returns the device bytes of the plain plan: a rank's parameters,
// gradients, optimizer state and activations for its part of the batch, at least
// one sequence, all at once.
func PlainBytes(ctx context.Context, req *Request) (int64, error) {
	pl := plan.Plain(req.Graph, max(req.GlobalBatch/max(req.Ranks, 1), 1))
	pl.Optimizer, pl.State = req.Optimizer, req.State
	p, err := lower.Lower(ctx, req.Graph, pl, req.Options)
	if err != nil {
		return 0, err
	}
	return p.Height[device.DeviceTier], nil
}
