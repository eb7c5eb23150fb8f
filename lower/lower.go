// Package lower compiles a graph and a plan to the program of one rank: its instructions on streams, with waits, buffers
// and addresses. It decides nothing that the plan could: a pass follows from the plan and from the passes before it.
//
//	order, compute, recompute, slabs, share, tiles, swap, lookups, batches
//	                                     which operators run when, on which rows
//	activations, inputs, weights         which buffers hold their operands
//	gradients, optimizer, results        what is added up, reduced, updated, kept
//	list, place, waits                   one list, addresses, what waits for what
package lower

import (
	"context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Mode is what a program computes.
type Mode uint8

const (
	Train  Mode = iota // forward, backward, optimizer
	Grads              // forward and backward; gradients are kept
	Eval               // forward: the loss
	Logits             // forward: the loss, and the logits on the host
	Decode             // forward of a generation graph: caches extended, and the logits, if it has any, on the host
	Update             // the updates deferred by the training step Options.Base, see Plan.Defer
)

var modes = [...]string{"train", "grads", "eval", "logits", "decode", "update"}

// Options are the inputs of Lower beyond graph and plan.
type Options struct {
	Mode         Mode
	Beta1, Beta2 float64
	Eps          float64
	Decay        float64 // decoupled weight decay, matrices only
	Muon         optimizer.MuonTerms
	Clip         float64 // bound on the global gradient norm; 0: no clipping
	// Capacity is the size of each tier in bytes. The program records it and Verify
	// enforces it. 0 means that the tier is absent; NoLimits disables the limits.
	Capacity [device.NumTiers]int64
	// Unplaced stops after listing the instructions, without addresses and waits. It
	// serves callers that only need the live bytes.
	Unplaced bool
	// Reject abandons a program whose live bytes exceed a capacity: Height then equals
	// Bound, and the program has no addresses or waits. One that exceeds a capacity with
	// its addresses has no waits. It is for searches, where most candidates do not fit.
	Reject bool
	// Unordered leaves out the waits. It is for callers that only ask whether a program fits.
	Unordered bool
	// Quick, with Reject, accepts the first addresses within the capacities. Otherwise
	// heuristics look for the lowest, which is more than half of a search's time and of
	// no use to callers that only compare times.
	Quick bool
	// Thorough searches for addresses for about a tenth of a second if the heuristics
	// have not reached the lower bound. It is for programs that will run.
	Thorough bool
	// Base is a program whose persistent buffers this one shares at the same addresses,
	// such as the training step that an evaluation runs between.
	Base *program.Program
	// RowUnit overrides the token rows per atom; 0 derives it. Equivalent can only
	// compare programs with the same row unit.
	RowUnit int
	// Rank is the rank to lower for.
	Rank int
	// Cuts adds, per parameter, element offsets at which its buffers are cut beyond
	// those that the plan needs, so that programs of different plans can be compared.
	Cuts [][]int
	// Packings, if not nil, remembers addresses: of ranks that do alike, only the first is packed.
	Packings *alloc.Cache
	// Scratch, if not nil, is memory that programs lowered one after another share.
	Scratch *Scratch
	// Dump is called after every pass.
	Dump func(pass string, p *program.Program)
}

// lowering is what goes through the passes: what they read, what they build with, and what each of them makes.
type lowering struct {
	ctx     context.Context
	step    *step
	builder *builder

	units     []unit       // made by pass order; filled by all others until list
	retention *retention   // by recompute
	operands  *operands    // by activations: no pass after it but results changes what units compute
	inputs    stepInputs   // by inputs
	weights   []weightHome // by weights, per chunk
	gradients []gradHome   // by gradients, per chunk
	rejected  bool         // by place, see Options.Reject
}

// pass is one step of the lowering: a function of what passes before it made.
type pass struct {
	name string
	run  func(*lowering) error
}

var passes = []pass{
	{"order", func(lo *lowering) error {
		lo.units = orderUnits(lo.step)
		return nil
	}},
	{"compute", func(lo *lowering) error {
		fillUnits(lo.builder, lo.units)
		return nil
	}},
	{"recompute", func(lo *lowering) error {
		lo.retention = newRetention(lo.step)
		recompute(lo.builder, lo.units, lo.retention)
		return nil
	}},
	{"slabs", func(lo *lowering) error {
		shareMatrices(lo.builder, lo.units)
		return nil
	}},
	{"share", func(lo *lowering) error {
		shareSequences(lo.builder, lo.units)
		return nil
	}},
	{"tiles", func(lo *lowering) error {
		tileFeedForwards(lo.builder, lo.units, lo.retention)
		return nil
	}},
	{"swap", func(lo *lowering) error {
		swapActivations(lo.builder, lo.units, lo.retention)
		return nil
	}},
	{"lookups", func(lo *lowering) error {
		lookUpOnHost(lo.builder, lo.units)
		return nil
	}},
	{"batches", func(lo *lowering) error {
		leaveDevice(lo.builder, lo.units)
		return nil
	}},
	{"activations", func(lo *lowering) error {
		lo.operands = indexOperands(lo.builder, lo.units)
		bufferActivations(lo.builder, lo.operands)
		return nil
	}},
	{"inputs", func(lo *lowering) error {
		lo.inputs = bufferInputs(lo.builder, lo.units, lo.operands)
		return nil
	}},
	{"weights", func(lo *lowering) (err error) {
		lo.weights, err = homeWeights(lo.builder, lo.units, lo.operands[graph.ParamValue])
		return err
	}},
	{"biases", func(lo *lowering) error {
		dropBiases(lo.builder, lo.units, lo.weights)
		return nil
	}},
	{"gradients", func(lo *lowering) (err error) {
		lo.gradients, err = sumGradients(lo.builder, lo.units, lo.operands[graph.ParamGrad])
		return err
	}},
	{"optimizer", func(lo *lowering) error {
		lo.units = updateParams(lo.builder, lo.units, lo.inputs, lo.weights, lo.gradients)
		return nil
	}},
	{"results", func(lo *lowering) error {
		copyResults(lo.builder, lo.units, lo.inputs.loss)
		return nil
	}},
	{"list", func(lo *lowering) error {
		lo.builder.p.Instrs = listInstructions(lo.step.opt.Mode, lo.units)
		return nil
	}},
	{"place", func(lo *lowering) (err error) {
		lo.rejected, err = placeBuffers(lo.ctx, lo.builder, &lo.step.opt)
		return err
	}},
	{"waits", func(lo *lowering) error {
		addWaits(lo.builder)
		return nil
	}},
}

// passOrder states which pass must precede which, and why. A test checks it against the
// table.
var passOrder = []struct{ before, after, why string }{
	{"order", "compute", "operators are listed per unit of the schedule"},
	{"compute", "recompute", "what the backward pass reads is known from its operators"},
	{"recompute", "share", "what is recomputed is divided among runs of tokens as what was computed"},
	{"share", "swap", "a value is complete when the last of its runs is"},
	{"recompute", "tiles", "what is recomputed of a feed-forward is divided together with its derivatives"},
	{"slabs", "tiles", "a sum over ranks is no operator that can be divided by rows"},
	{"share", "tiles", "which values only a feed-forward reads is known from all operators"},
	{"tiles", "swap", "a value is complete when the last of its tiles is"},
	{"tiles", "activations", "values that only a tile reads have its rows"},
	{"share", "activations", "the parts of an operator refer to the values that it refers to"},
	{"recompute", "slabs", "what is recomputed is added up over ranks again"},
	{"slabs", "activations", "a rank that does not add the residual stream does not read it"},
	{"weights", "biases", "ranks that share matrices fetch the same chunks in the same order, so a bias that one adds all have"},
	{"biases", "list", "only then are operands final"},
	{"recompute", "swap", "what comes back fills the rows that are not recomputed, before their first use"},
	{"lookups", "inputs", "the host's cores read tokens where the run puts them"},
	{"lookups", "weights", "a table in which the host looks up rows is read where it is, and sent nowhere"},
	{"batches", "activations", "what comes back from the host, as hidden states and attention's results do, is a buffer of its own"},
	{"batches", "inputs", "the host's attention reads positions and caches where it runs"},
	{"swap", "activations", "values that come back are buffers of their own, as are recomputed ones"},
	{"recompute", "weights", "recomputation reads weights again, so it counts as a use"},
	{"activations", "list", "instructions need buffers"},
	{"inputs", "optimizer", "the optimizer reads the step's scalars where the inputs put them"},
	{"weights", "optimizer", "updated weights go back to where the forward pass takes them from"},
	{"gradients", "optimizer", "the optimizer reads gradients where their last contribution left them"},
	{"optimizer", "results", "the norm is known after the optimizer pass"},
	{"results", "list", "all units must be filled before they are strung together"},
	{"list", "place", "lifetimes are ranges of the list"},
	{"place", "waits", "bytes are reused by address: a buffer waits for what was there before"},
}

// Lower builds the program of one step.
func Lower(ctx context.Context, g *graph.Graph, pl *plan.Plan, opt Options) (*program.Program, error) {
	if err := pl.Validate(g); err != nil {
		return nil, err
	}
	if (opt.Mode == Decode) != (g.Context > 0) {
		return nil, errors.New("mode decode needs a graph for generation, and the other modes one for training; hint: build graphs for generation with graph.BuildDecode or BuildPrefill")
	}
	if opt.Mode == Decode && (pl.MicroBatch != 1 || g.Slots == 0 && pl.MicroBatches != 1) {
		return nil, fmt.Errorf("%d sequences cannot share the key and value caches of one; hint: set micro_batch to 1 and, without slots, micro_batches too", pl.MicroBatch*pl.MicroBatches)
	}
	if opt.Rank < 0 || opt.Rank >= pl.Ranks {
		return nil, fmt.Errorf("there is no rank %d among %d ranks; hint: count ranks from 0", opt.Rank, pl.Ranks)
	}
	if opt.Mode == Update && (!pl.Defer || opt.Base == nil) {
		return nil, errors.New("mode update needs a plan that defers updates and the program of its step; hint: set Plan.Defer and Options.Base")
	}
	lo, err := newLowering(ctx, g, pl, opt)
	if err != nil {
		return nil, err
	}
	defer opt.Scratch.give(lo.builder.scratch)
	for _, ps := range passes {
		if err := ps.run(lo); err != nil {
			return nil, fmt.Errorf("lowering, pass %s: %w", ps.name, err)
		}
		if opt.Dump != nil {
			opt.Dump(ps.name, lo.builder.p)
		}
		if lo.rejected || opt.Unplaced && ps.name == "list" || opt.Unordered && ps.name == "place" {
			break
		}
	}
	return lo.builder.p, nil
}

// newLowering returns a lowering before the first pass.
func newLowering(ctx context.Context, g *graph.Graph, pl *plan.Plan, opt Options) (*lowering, error) {
	geo, err := newRankGeometry(g, pl, opt.Rank, opt.Cuts)
	if err != nil {
		return nil, err
	}
	st := &step{geometry: geo, opt: opt, rowUnit: opt.RowUnit, cuts: headCuts(g, pl.HeadParts())}
	if st.rowUnit == 0 {
		st.rowUnit = pl.RowUnit(g.Seq)
	}
	p := &program.Program{Name: modes[opt.Mode], Rank: opt.Rank, PlanHash: pl.Hash(), RowUnit: st.rowUnit, Capacity: opt.Capacity}
	p.BatchRow = geo.top.Pipeline(opt.Rank) * pl.MicroBatch * pl.MicroBatches * g.Sequence()
	if g.Parts() > 1 {
		p.Sequence, p.Runs = g.Whole, g.Runs(st.part())
	}
	return &lowering{ctx: ctx, step: st, builder: &builder{st: st, p: p, scratch: opt.Scratch.take()}}, nil
}
