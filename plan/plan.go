// Package plan finds the fastest plan that fits.
//
// The question is what lives where, what is kept and what is made again, and
// how the batch is cut. An answer is judged by nothing but the compiler itself:
// a candidate is lowered to its program, whose packing gives its memory to the
// byte, and the program is simulated, which gives its time:
//
//	decisions --Lower--> program --place--> bytes per tier
//	                        |
//	                        '------sim----> seconds per step
//
// So what the search believes is what the run does. Bounds keep it short: the
// memory that a choice of residency needs whatever else is chosen, and the
// time that the arithmetic alone takes.
//
// With a description of a machine only, Search is a function of its arguments. A
// Machine may also come with functions that time operators and try finalists on
// real hardware: then the plan depends on what they measure, and on the moment.
package plan

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// Machine is what the search knows of the hardware.
type Machine struct {
	// Capacity is the memory of each tier in bytes; 0 means there is none.
	// Each rank has so much.
	Capacity [device.NumTiers]int64
	// Shared is what device and host tier may use together where they are the
	// same memory, as on a CPU, all ranks together; 0: they are not.
	Shared int64
	// Cost predicts the time of an operator.
	Cost sim.Coster
	// Measure, if not nil, improves Cost for the operators of a program: by
	// timing them on the machine.
	Measure func(*Candidate) error
	// Trial, if not nil, has the finalists run on the machine.
	Trial *Trial
}

// Request is what is to be planned.
type Request struct {
	Graph       *graph.Graph
	GlobalBatch int // sequences per step, of all ranks
	Ranks       int // 0: 1
	Options     program.Options
	State       string // how the optimizer's state is stored, see program.Plan
	Pins        Pins
	Rivals      []Rival // that the result must not be slower than
	// HeadUnit is what the tokens that the head takes at a time are multiples of, where the
	// device's sums may not be cut anywhere; 0: they may.
	HeadUnit int
}

// Pins are decisions that the user has taken; zero values are open.
type Pins struct {
	MicroBatch, Group, HeadRows, Prefetch int
	Cache                                 int64
	Slots                                 int
	Recompute                             string
	Policy                                string                    // of ActivationRules, or ""
	Activations                           map[int]program.Retention // by layer
	Weights, Grads, State                 *device.Tier
	Update                                string // one of Updaters
	// Of pipelines: the schedule, how many ranks each has (1: none), the segments
	// that stages begin with, the slices of a sequence.
	Schedule         string
	Pipeline, Slices int
	Stages           []int
}

// Open reports whether the user has decided nothing.
func (p *Pins) Open() bool { return reflect.ValueOf(p).Elem().IsZero() }

// Candidate is a plan with what it was found to need.
type Candidate struct {
	Plan *program.Plan
	// Programs are those of the ranks of the first pipeline, or that of the rank
	// with the largest shards; the others do the same with other sequences and
	// other shards. Program is the first, Timeline its. Ranks, which only the
	// result of a search has, are all programs.
	Programs  []*program.Program
	Ranks     []*program.Program
	Program   *program.Program
	Timeline  *sim.Timeline
	Timelines []*sim.Timeline // of Programs, on one clock
	Label     string          // in words, for people
	Kind      string          // what plans that differ in sizes only have in common
	Fits      bool
	Tried     float64 // seconds per step, median of trials; 0: there were none
	trials    []float64
	seconds   float64
	spans     [][]device.Span // of Programs
	choice    choice          // where a search made it, unless it is a pipeline or a rival
}

// Seconds per step, as simulated.
func (c *Candidate) Seconds() float64 { return c.seconds }

// Result of a search.
type Result struct {
	Best      *Candidate
	RunnersUp []*Candidate // the best of other kinds, fastest first, as predicted
	Evaluated int          // candidates lowered
}

// Fastest is the least time that was predicted, which is that of the best plan
// unless trials have said otherwise.
func (r *Result) Fastest() float64 {
	least := r.Best.Seconds()
	for _, c := range r.RunnersUp {
		least = min(least, c.Seconds())
	}
	return least
}

// ErrDoesNotFit: no plan fits. The error is a *Misfit.
var ErrDoesNotFit = errors.New("does not fit")

// ErrBatch: the batch cannot be divided among the ranks.
var ErrBatch = errors.New("the batch cannot be divided")

// ErrPins: no plan keeps the decisions that the user has taken.
var ErrPins = errors.New("weights, gradients and optimizer cannot live in these tiers together; hint: each on the same or a farther tier than the one before, in the order weights, grads, state, weights and grads on device or host; or leave `plan` out")

// ErrPipeline: no pipeline as pinned can be made, or fits.
var ErrPipeline = errors.New("no pipeline with these decisions fits; hint: more stages or ranks, smaller micro-batches, more memory, or leave some decisions of `plan` out")

// Misfit tells what stands in the way and what would help.
type Misfit struct {
	Frugal *Candidate // the plan that needs least of the tier that is short
	Only   bool       // no other plan was looked at
	Tier   device.Tier
	Need   int64
	Have   int64
	Hint   string
}

func (e *Misfit) Error() string {
	if e.Only {
		return fmt.Sprintf("%s does not fit: it needs %s of %v memory, and there are %s; hint: %s, and another plan may need less", e.Frugal.Label, size.Exact(e.Need), e.Tier, size.Exact(e.Have), e.Hint)
	}
	return fmt.Sprintf("the model does not fit: the most frugal plan needs %s of %v memory, and there are %s; hint: %s", size.Exact(e.Need), e.Tier, size.Exact(e.Have), e.Hint)
}

func (e *Misfit) Is(target error) bool { return target == ErrDoesNotFit }

// Evaluate lowers a plan and checks its memory; the time is left to Time.
func Evaluate(ctx context.Context, req *Request, pl *program.Plan, m *Machine, label string) (*Candidate, error) {
	opt := req.Options
	opt.Capacity = m.Capacity
	c := &Candidate{Plan: pl, Label: label, Fits: true}
	together := int64(0)
	first := 0
	if pl.Pipeline == nil && pl.Ranks > 1 {
		var err error
		if first, err = pl.Largest(req.Graph); err != nil {
			return nil, err
		}
	}
	for r := range pl.Ranks / pl.Replicas() {
		opt.Rank = first + r
		p, err := program.Lower(ctx, req.Graph, pl, opt)
		if err != nil {
			return nil, err
		}
		c.Fits = c.Fits && p.Fits()
		c.Programs = append(c.Programs, p)
		together += (p.Height[device.DeviceTier] + p.Height[device.HostTier]) * int64(pl.Replicas())
	}
	if m.Shared > 0 && together > m.Shared {
		c.Fits = false
	}
	c.Program = c.Programs[0]
	return c, nil
}

// Complete lowers the programs of all ranks and reports whether each fits:
// shards are not all of one size.
func (c *Candidate) Complete(ctx context.Context, req *Request) (bool, error) {
	if c.Ranks != nil {
		return c.Fits, nil
	}
	opt := req.Options
	opt.Capacity = c.Program.Capacity
	for opt.Rank = range c.Plan.Ranks {
		if k := slices.IndexFunc(c.Programs, func(p *program.Program) bool { return p.Rank == opt.Rank }); k >= 0 {
			c.Ranks = append(c.Ranks, c.Programs[k])
			continue
		}
		p, err := program.Lower(ctx, req.Graph, c.Plan, opt)
		if err != nil {
			return false, err
		}
		c.Fits = c.Fits && p.Fits()
		c.Ranks = append(c.Ranks, p)
	}
	return c.Fits, nil
}

// ranks are all programs, as far as they are known: pipelines are alike but for
// the sizes of their shards.
func (c *Candidate) ranks() []*program.Program {
	list := slices.Clone(c.Ranks)
	for len(list) < c.Plan.Ranks {
		list = append(list, c.Programs[len(list)%len(c.Programs)])
	}
	return list
}

// Time simulates a candidate: the ranks of a pipeline on one clock, one of
// several that do the same by itself.
func (c *Candidate) Time(m *Machine) error {
	if err := c.simulate(m); err != nil {
		return err
	}
	return c.draw()
}

// simulate finds when each instruction runs, and the seconds per step.
func (c *Candidate) simulate(m *Machine) (err error) {
	if len(c.Programs) > 1 {
		c.spans, err = sim.SpansFirst(c.Programs, c.Plan.Ranks, m.Cost)
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
	return nil
}

// draw derives the timelines of what was simulated.
func (c *Candidate) draw() (err error) {
	if c.Timelines, err = sim.NewAll(c.Programs, c.spans); err == nil {
		c.Timeline = c.Timelines[0]
	}
	return err
}

// Idle is the share of the step in which ranks do not compute, on average: in a
// pipeline mostly its bubble.
func (c *Candidate) Idle() float64 { return 1 - c.share(func(*program.Instr) bool { return true }) }

// Repeated is the share of the step in which ranks make things again.
func (c *Candidate) Repeated() float64 {
	return c.share(func(in *program.Instr) bool { return in.Key.Dir == program.Recompute })
}

// share of the step that the compute streams spend on instructions of a kind.
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

// Needs is the memory of each tier that the rank needs which needs most of it.
func (c *Candidate) Needs() (need [device.NumTiers]int64) {
	for _, p := range c.ranks() {
		for t, h := range p.Height {
			need[t] = max(need[t], h)
		}
	}
	return need
}

// Limit is the override that gives each of some ranks so much of a tier.
func Limit(t device.Tier, bytes int64, ranks int) string {
	if t != device.DeviceTier { // that of all ranks together
		bytes *= int64(ranks)
	}
	return fmt.Sprintf("limits.%v=%d", t, bytes)
}

// NewMisfit says what a candidate lacks.
func NewMisfit(c *Candidate) *Misfit {
	e := &Misfit{Frugal: c}
	var enough []string
	need := c.Needs()
	for t, have := range c.Program.Capacity {
		if need[t] > have {
			enough = append(enough, Limit(device.Tier(t), need[t], c.Plan.Ranks))
		}
		if need[t]-have > e.Need-e.Have {
			e.Tier, e.Need, e.Have = device.Tier(t), need[t], have
		}
	}
	e.Hint = strings.Join(enough, " ") + " fits"
	return e
}

// PlainBytes is the device memory of the plain plan: all parameters, gradients,
// optimizer state and activations of a rank's part of the batch at once, of a
// sequence at least.
func PlainBytes(ctx context.Context, req *Request) (int64, error) {
	pl := program.Plain(req.Graph, max(req.GlobalBatch/max(req.Ranks, 1), 1))
	pl.State = req.State
	p, err := program.Lower(ctx, req.Graph, pl, req.Options)
	if err != nil {
		return 0, err
	}
	return p.Height[device.DeviceTier], nil
}
