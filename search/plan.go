// Package search finds the fastest plan that fits.
//
// A plan decides where data lives, which activations are kept, swapped or
// recomputed, and how the batch is cut. The compiler itself judges a candidate: the
// candidate is lowered to its program, whose packing gives its memory to the byte,
// and the program is simulated, which gives its time:
//
//	decisions --Lower--> program --place--> bytes per tier
//	                        |
//	                        '------sim----> seconds per step
//
// So what the search assumes is what the run does. Lower bounds keep the search short: the memory that a
// placement needs whatever else is chosen, and the time that arithmetic alone takes. Steps of many
// micro-batches are judged by three of them, and lowered in full only for candidates that are kept (short.go).
//
// Terms used in the code:
//
//	residency   placement: the tiers of weights, gradients and optimizer state,
//	            and how ranks shard them
//	retention   a layer's activation policy: what is kept, swapped or recomputed
//	fate        the same for one class of a layer's activations
//	ladder      activation policies for all layers, sorted from least work to
//	            least memory; a rung is an index into it
//	style       chunk size, cache, prefetch and head rows
//	frugal      needing least memory
//
// Given only a machine's description, Search is a function of its arguments. A
// Machine may also have functions that time operators and try finalists on real
// hardware. The plan then depends on what they measure, and so on the moment.
package search

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
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// Machine describes the hardware to the search.
type Machine struct {
	// Capacity is each rank's memory of each tier in bytes; 0: the tier is absent.
	Capacity [device.NumTiers]int64
	// Shared is the memory that device and host tiers of all ranks draw on
	// together, in bytes, where they are the same memory, as on a CPU; 0: they are
	// separate.
	Shared int64
	// Cost predicts the seconds of an operator.
	Cost sim.Coster
	// Measure, if not nil, improves Cost for a candidate's operators by timing them
	// on the machine.
	Measure func(*Candidate) error
	// Trial, if not nil, runs the finalists on the machine.
	Trial *Trial
}

// Request describes what to plan.
type Request struct {
	Graph       *graph.Graph
	GlobalBatch int // sequences per step, of all ranks
	Ranks       int // 0: 1
	Options     lower.Options
	Optimizer   optimizer.Optimizer
	State       plan.StateFormat // how the optimizer's state is stored, see plan.Plan
	Pins        Pins
	Rivals      []Rival // other plans that the result must not be slower than, except by what thrifty allows
	// HeadUnit must divide the number of tokens that the head processes at a time if the device's sums can be
	// cut only at multiples of it; 0: they can be cut anywhere.
	HeadUnit int
}

// Pins are decisions that the user has made; zero values leave them to the search.
type Pins struct {
	MicroBatch, Group, HeadRows, Prefetch int
	Cache                                 int64
	Slots                                 int
	Recompute                             string
	Policy                                string                 // of ActivationRules, or ""
	Activations                           map[int]plan.Retention // by layer
	Weights, Grads, State                 *device.Tier
	Update                                string // one of Updaters
	// Of pipelines: the schedule, ranks per pipeline (1: none), the first segment
	// of each stage, slices per sequence.
	Schedule         string
	Pipeline, Slices int
	Stages           []int
}

// Open reports whether the user has decided nothing.
func (p *Pins) Open() bool { return reflect.ValueOf(p).Elem().IsZero() }

// Candidate is a plan with its programs and what is known of its memory and time. While the search compares
// candidates, plan and programs may have fewer micro-batches than the step (missing); in a result they are
// whole.
type Candidate struct {
	Plan *plan.Plan
	// Programs are those of the ranks of the first pipeline or, without one, of the
	// rank with the largest shards. Other ranks do the same with other sequences
	// and shards. Program and Timeline are the first rank's. Ranks holds all
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
	missing   int             // micro-batches that the step has beyond those of Plan, see short.go
	beyond    float64         // seconds that the missing micro-batches take
}

// Seconds returns the simulated seconds per step.
func (c *Candidate) Seconds() float64 { return c.seconds }

// Result is the result of a search.
type Result struct {
	Best      *Candidate
	RunnersUp []*Candidate // the best of other kinds, fastest first, as predicted
	Evaluated int          // candidates lowered
}

// Fastest returns the least predicted time. It is the best plan's unless trials
// changed the order, or the best is thriftier and hardly slower.
func (r *Result) Fastest() float64 {
	least := r.Best.Seconds()
	for _, c := range r.RunnersUp {
		least = min(least, c.Seconds())
	}
	return least
}

// ErrDoesNotFit reports that no plan fits. The error is a *Misfit.
var ErrDoesNotFit = errors.New("does not fit")

// ErrBatch reports that the batch cannot be divided among the ranks.
var ErrBatch = errors.New("the batch cannot be divided")

// ErrPins reports that no plan satisfies the user's decisions.
var ErrPins = errors.New("weights, grads and state cannot be in these tiers together; hint: use device or host for weights and grads, and a tier at least as far from the device for state; with state on disk, weights may be on the host only if grads are, too; or leave `plan` out")

// ErrPipeline reports that no pipeline with the user's decisions exists or fits.
var ErrPipeline = errors.New("no pipeline with these decisions fits; hint: use more stages or ranks, smaller micro-batches or more memory, or leave some decisions of `plan` out")

// Misfit is the error when nothing fits: which tier is short, by how much, and what
// would help.
type Misfit struct {
	Frugal *Candidate // the minimum-memory plan
	Only   bool       // it is the only plan that was considered
	Tier   device.Tier
	Need   int64
	Have   int64
	Hint   string
}

func (e *Misfit) Error() string {
	if e.Only {
		return fmt.Sprintf("%s does not fit: it needs %s of %v memory, but only %s are available; hint: %s, and another plan may need less", e.Frugal.Label, size.Exact(e.Need), e.Tier, size.Exact(e.Have), e.Hint)
	}
	state := ""
	if pl := e.Frugal.Plan; pl != nil && pl.State != plan.FP32State {
		state = fmt.Sprintf(", with optimizer_state %s,", pl.State)
	}
	return fmt.Sprintf("the model does not fit: the most frugal plan tried%s needs %s of %v memory, but only %s are available; hint: %s", state, size.Exact(e.Need), e.Tier, size.Exact(e.Have), e.Hint)
}

func (e *Misfit) Is(target error) bool { return target == ErrDoesNotFit }

// Evaluate lowers a plan and checks its memory. It does not set the time; see Time.
func Evaluate(ctx context.Context, req *Request, pl *plan.Plan, m *Machine, label string) (*Candidate, error) {
	opt := req.Options
	opt.Capacity = m.Capacity
	c := &Candidate{Plan: pl, Label: label, Fits: true}
	together := int64(0)
	first := 0
	if pl.Pipeline == nil && pl.Ranks > 1 {
		var err error
		if first, err = lower.Largest(req.Graph, pl); err != nil {
			return nil, err
		}
	}
	for r := range pl.Ranks / pl.Replicas() {
		opt.Rank = first + r
		p, err := lower.Lower(ctx, req.Graph, pl, opt)
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

// Complete lowers the programs of all ranks and reports whether each fits: shards
// differ in size.
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
		p, err := lower.Lower(ctx, req.Graph, c.Plan, opt)
		if err != nil {
			return false, err
		}
		c.Fits = c.Fits && p.Fits()
		c.Ranks = append(c.Ranks, p)
	}
	return c.Fits, nil
}

// ranks returns a program for every rank. Unknown ones are taken from the first
// pipeline: pipelines differ in the sizes of shards only.
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

// beside returns for how many seconds streams other than the devices' compute streams are busy, summed over
// streams and ranks.
func (c *Candidate) beside() (sum float64) {
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

// Limit returns the configuration override that gives each rank that many bytes of a tier.
func Limit(t device.Tier, bytes int64, ranks int) string {
	if t != device.DeviceTier { // the limit is for all ranks together
		bytes *= int64(ranks)
	}
	return fmt.Sprintf("limits.%v=%d", t, bytes)
}

// NewMisfit describes the tier that a candidate exceeds most.
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
	e.Hint = "it fits with " + strings.Join(enough, " ")
	return e
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
