package search

import (
	"reflect"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
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
	// Deal returns Cost where the ranks of pipelines of so many stages are on the hosts that suit these; nil: all are on one host.
	Deal func(stages int) sim.Coster
	// Measure, if not nil, improves Cost for a candidate's operators by timing them
	// on the machine.
	Measure func(*Candidate) error
	// Trial, if not nil, runs the finalists on the machine.
	Trial *Trial
}

// dealt returns the prices where ranks are on the hosts that suit pipelines of so many stages, in which so many ranks compute
// with each sequence.
func (m *Machine) dealt(stages, perSequence int) sim.Coster {
	if m.Deal == nil || stages == 1 || perSequence > 1 {
		return m.Cost
	}
	return m.Deal(stages)
}

// Request describes what to plan.
type Request struct {
	Graph       *graph.Graph
	GlobalBatch int // sequences per step, of all ranks, or parts of sequences if the graph is that of a part
	Ranks       int // 0: 1
	Options     lower.Options
	Optimizer   optimizer.Optimizer
	State       plan.StateFormat // how the optimizer's state is stored, see plan.Plan
	Compact     bool             // of one rank: chunks are compact where they can be, see plan.Chunk
	Pins        Pins
	Rivals      []Rival // other plans that the result must not be slower than, except by what preferThrifty allows
	// HeadUnit must divide the number of tokens that the head processes at a time if the device's sums can be
	// cut only at multiples of it; 0: they can be cut anywhere.
	HeadUnit int
	// Sketch asks for a good plan in a small part of the time, instead of the fastest: what the enumeration finds soon,
	// with memory divided but nothing else improved. By prediction the fastest plan takes no longer, but for what
	// preferThrifty allows. Where only few plans fit, it may find none, which is then said to be a misfit.
	Sketch bool
	// Enough, once it is closed, ends the search with the best plan so far, as soon as there is one; nil: never.
	Enough <-chan struct{}
	// Early, if not nil, is told the best plan so far once, when the search has lasted a second and there is one.
	Early func(*Candidate)
}

// Pins are decisions that the user has made; zero values leave them to the search.
type Pins struct {
	MicroBatch, Group, HeadRows, FeedRows, KVParts, Prefetch int
	Cache                                                    int64
	Slots                                                    int
	Exchange                                                 string // plan.ExchangeKeys or ExchangeHeads, or ""
	Recompute                                                string
	Policy                                                   string                 // of ActivationRules, or ""
	Activations                                              map[int]plan.Retention // by layer
	Weights, Grads, State                                    *device.Tier
	Update                                                   string // one of Updaters
	// Of pipelines: the schedule, ranks per pipeline (1: none), the first segment
	// of each stage, slices per sequence.
	Schedule         string
	Pipeline, Slices int
	Stages           []int
	Sequence         int // ranks that share each sequence: those of the graph; 0: left open
	Tensor           int // ranks that share each matrix, likewise
	VocabularyParts  int // parts of embedding and head, likewise
}

// Open reports whether the user has decided nothing.
func (p *Pins) Open() bool { return reflect.ValueOf(p).Elem().IsZero() }

// pipelined reports whether the user has made decisions that only pipelines have.
func (p *Pins) pipelined() bool {
	return p.Pipeline > 1 || p.Schedule != "" || p.Slices > 1 || len(p.Stages) > 0
}

// allow reports whether a placement is what the user has decided.
func (p *Pins) allow(r residency) bool {
	ok := func(pin *device.Tier, t device.Tier) bool { return pin == nil || *pin == t }
	return ok(p.Weights, r.weights) && ok(p.Grads, r.grads) && ok(p.State, r.state)
}

// placesChunks reports whether the user has decided where chunks live.
func (p *Pins) placesChunks() bool { return p.Weights != nil || p.State != nil || p.Grads != nil }

// dividesMemory reports whether the user has decided what the device's memory is used for.
func (p *Pins) dividesMemory() bool { return p.Cache != 0 || p.placesChunks() || p.Policy != "" }

// setsActivations reports whether the user has decided about activations.
func (p *Pins) setsActivations() bool {
	return p.Recompute != "" || p.Policy != "" || len(p.Activations) > 0
}

// activations overrides policies by the user's decisions.
func (p *Pins) activations(keep []plan.Retention) []plan.Retention {
	if len(p.Activations) == 0 {
		return keep
	}
	keep = slices.Clone(keep)
	for l, r := range p.Activations {
		keep[l] = r
	}
	return keep
}
