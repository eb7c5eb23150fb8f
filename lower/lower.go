// Package lower compiles a graph and a plan to the program of one rank: its instructions on streams, with waits, buffers
// and addresses. It decides nothing that the plan could: a pass follows from the plan and from the passes before it.
//
//	order, compute, recompute, swap      which operators run when, on which rows
//	activations, inputs, weights         which buffers hold their operands
//	gradients, optimizer, results        what is added up, reduced, updated, kept
//	list, place, waits                   one list, addresses, what waits for what
package lower

import (
	"context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
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
	Clip         float64 // bound on the global gradient norm; 0: no clipping
	// Capacity is the size of each tier in bytes. The program records it and Verify
	// enforces it. 0 means that the tier is absent; NoLimits disables the limits.
	Capacity [device.NumTiers]int64
	// Unplaced stops after listing the instructions, without addresses and waits. It
	// serves callers that only need the live bytes.
	Unplaced bool
	// Reject abandons a program whose live bytes exceed a capacity: Height then equals
	// Bound, and the program has no addresses or waits. It is for searches, where most
	// candidates do not fit.
	Reject bool
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
	// Dump is called after every pass.
	Dump func(pass string, p *program.Program)
}

// pass is one step of the lowering. Passes share a lowering and run in table order.
type pass struct {
	name string
	run  func(*lowering) error
}

var passes = []pass{
	{"order", (*lowering).order},
	{"compute", (*lowering).compute},
	{"recompute", (*lowering).recompute},
	{"swap", (*lowering).swap},
	{"activations", (*lowering).activations},
	{"inputs", (*lowering).inputs},
	{"weights", (*lowering).weights},
	{"gradients", (*lowering).gradients},
	{"optimizer", (*lowering).optimizer},
	{"results", (*lowering).results},
	{"list", (*lowering).list},
	{"place", (*lowering).place},
	{"waits", (*lowering).waits},
}

// passOrder states which pass must precede which, and why. A test checks it against the
// table.
var passOrder = []struct{ before, after, why string }{
	{"order", "compute", "operators are listed per unit of the schedule"},
	{"compute", "recompute", "what the backward pass reads is known from its operators"},
	{"recompute", "swap", "what comes back fills the rows that are not recomputed, before their first use"},
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
	if opt.Mode == Decode && pl.MicroBatch*pl.MicroBatches != 1 {
		return nil, fmt.Errorf("%d sequences cannot share the key and value caches of one; hint: set micro_batch and micro_batches to 1", pl.MicroBatch*pl.MicroBatches)
	}
	if opt.Rank < 0 || opt.Rank >= pl.Ranks {
		return nil, fmt.Errorf("there is no rank %d among %d ranks; hint: count ranks from 0", opt.Rank, pl.Ranks)
	}
	if opt.Mode == Update && (!pl.Defer || opt.Base == nil) {
		return nil, errors.New("mode update needs a plan that defers updates and the program of its step; hint: set Plan.Defer and Options.Base")
	}
	lo := &lowering{ctx: ctx, g: g, pl: pl, opt: opt}
	lo.p = &program.Program{Name: modes[opt.Mode], Rank: opt.Rank, PlanHash: pl.Hash(), RowUnit: opt.RowUnit, Capacity: opt.Capacity}
	var err error
	if lo.top, err = plan.NewTopology(g, pl); err != nil {
		return nil, err
	}
	lo.index()
	lo.p.BatchRow = opt.Rank / lo.top.Depth * lo.rows() * pl.MicroBatches
	if lo.p.RowUnit == 0 {
		lo.p.RowUnit = pl.RowUnit(g.Seq)
	}
	for _, ps := range passes {
		if err := ps.run(lo); err != nil {
			return nil, fmt.Errorf("lowering, pass %s: %w", ps.name, err)
		}
		if opt.Dump != nil {
			opt.Dump(ps.name, lo.p)
		}
		if lo.rejected || opt.Unplaced && ps.name == "list" {
			break
		}
	}
	return lo.p, nil
}

// lowering is the state shared by the passes.
type lowering struct {
	ctx context.Context
	g   *graph.Graph
	pl  *plan.Plan
	opt Options
	p   *program.Program

	top   *plan.Topology
	units []unit
	// Slabs for operands: a search lowers thousands of programs.
	regions slab[program.Region]
	refs    slab[ref]
	// per parameter: its chunk, and its offset there in elements
	chunkOf, offsetOf []int
	within            []bool // see Runs
	// per segment, computed on demand: the class of each saved value, and what the
	// backward units recompute
	acts      [][]plan.Act
	remakings []*remaking
	// per chunk, computed on demand: the ends of its shards and of its atoms
	shardsOf, atomsOf [][]int

	rejected bool // see Options.Reject

	terms                  // of the step's updates
	total     int          // buffer of the loss on the device
	weightBuf []weightHome // per chunk
	gradBuf   []gradHome   // per chunk
}

// terms are what all updates of a step read.
type terms struct {
	scalars [device.NumTiers]int // buffer of the step's scalars, by tier, or -1
	clip    [device.NumTiers]int // buffer of {clip factor, norm}, or -1
}

// slab hands out zeroed slices, many per allocation.
type slab[T any] struct{ free []T }

func (s *slab[T]) take(n int) []T {
	const many = 4096
	if n > len(s.free) {
		s.free = make([]T, max(n, many))
	}
	list := s.free[:n:n]
	s.free = s.free[n:]
	return list
}

// op is an instruction whose operands are still graph values, or already regions.
type op struct {
	in       program.Instr
	refs     []ref // refs[i].value >= 0: a later pass resolves it into in.Args[i]
	deferred bool  // by the previous step, see postponed
}

// ref is an operand as a value of the graph: rows [row, row+rows) and columns [lo, hi)
// of one micro-batch's instance of it. copy numbers the instances of a forward value: 0
// from the forward pass, 1 recomputed for the backward pass; for chunked values, the
// row chunk.
type ref struct {
	value, micro, copy int
	row, rows, lo, hi  int
	run                int // of gradients, see lowering.run
}

var none = ref{value: -1}

// buffer appends a buffer and returns its number.
func (lo *lowering) buffer(b program.Buffer) int {
	if b.Align == 0 {
		b.Align = 64
	}
	if b.Tier == device.DiskTier {
		b.Align = 4096 // direct I/O; chunks are padded to multiples of it
	}
	b.Size = int64(b.Rows) * int64(b.Cols) * b.DType.Size()
	b.Addr = -1
	lo.p.Buffers = append(lo.p.Buffers, b)
	return len(lo.p.Buffers) - 1
}

// copyOp builds a copy between two regions of equal extents.
func copyOp(stream device.Stream, key program.Key, dst, src program.Region) op {
	key.Dir = program.Transfer
	return op{in: program.Instr{Op: graph.Copy, Stream: stream, Key: key, Args: []program.Region{dst, src}}}
}

// resolve replaces the operands that are values of one kind, in all units.
func (lo *lowering) resolve(kind graph.ValueKind, region func(u *unit, r ref) program.Region) {
	for i := range lo.units {
		u := &lo.units[i]
		for j := range u.work {
			o := &u.work[j]
			for k, r := range o.refs {
				if r.value >= 0 && lo.g.Values[r.value].Kind == kind {
					o.in.Args[k] = region(u, r)
				}
			}
		}
	}
}
