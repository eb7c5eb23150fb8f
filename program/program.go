// Package program has what one rank executes in one step of training, evaluation or generation: a fully unrolled list of
// instructions on streams, with waits, buffers and addresses.
//
//	graph + plan --lower--> program --verify--> execute | simulate | draw
//
// The executor decides nothing: every decision is in the program, and the simulator
// reads the same list. A program prints as text without loss:
//
//	i12 linear(qkv'2, norm1'2, w2[64x192], b2, -) compute key=2,0,-,fwd wait=i9
//
// Instructions are listed in one order that respects all dependencies ("program order",
// the index in Instrs). Within a stream they run in that order; across streams only
// waits order them. A buffer is live from its first to its last instruction in program
// order, and its address is fixed in advance. The height of the packing is exactly the
// memory of the run.
package program

import (
	"cmp"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
)

// Class groups buffers in memory reports.
type Class uint8

const (
	ClassWeights     Class = iota // parameters that operators read, and fp32 masters
	ClassFrozen                   // parameters that are not trained
	ClassGrads                    // gradients of parameters
	ClassState                    // optimizer moments
	ClassActivations              // values of the forward pass
	ClassActGrads                 // their gradients
	ClassInputs                   // tokens, targets, tables, scalars
	ClassReductions               // losses, norms
	NumClasses
)

var classes = [...]string{"weights", "frozen weights", "gradients", "optimizer", "activations", "activation gradients", "inputs", "reductions"}

func (c Class) String() string { return classes[c] }

// Buffer is a region of one tier's arena. Size, Align and Addr are in bytes.
//
// A buffer is a matrix of Rows x Cols elements without padding between rows. Cuts
// divide it into atoms, which instructions access only as a whole. The atoms of a
// token-indexed buffer (RowUnit > 0) are blocks of RowUnit rows times the column bands
// between consecutive Cuts. Those of a flat buffer (RowUnit == 0, one row) are the
// column ranges between Cuts. Cuts never include 0 or Cols.
type Buffer struct {
	Name       string
	Tier       device.Tier
	Class      Class
	DType      graph.DType
	Rows, Cols int
	RowUnit    int
	Cuts       []int
	Size       int64 // bytes, at least leastSize
	Align      int64
	Addr       int64 // -1 until placed
	// Persistent buffers keep their content between steps: they are live for the whole
	// program.
	Persistent bool
	// Init names the content of a persistent buffer before the step (for example
	// "p:transformer.wte.weight"). Two buffers or atoms with equal names hold equal
	// content. Empty: undefined. Flat buffers have one name per atom ("" for padding,
	// whose content is arbitrary and may be copied). Others have one name for all
	// atoms, which then also implies their positions. The run fills homes, and buffers
	// named after their content. "x.before" in buffer x is what an earlier step left
	// there.
	Init []string
}

// Region is an operand: Rows x Cols elements starting at element Off of buffer Buf,
// with Stride elements from row to row. Rows == 0 marks an absent optional operand.
type Region struct {
	Buf        int
	Off        int
	Rows, Cols int
	Stride     int
}

// Absent reports whether the operand is omitted.
func (r Region) Absent() bool { return r.Rows == 0 }

// Direction is the pass that an instruction belongs to.
type Direction uint8

const (
	Forward   Direction = iota
	Backward            // input and weight gradients
	Recompute           // a forward instruction repeated for the backward pass
	Optimizer
	Transfer // copies between tiers
)

var directions = [...]string{"fwd", "bwd", "rec", "opt", "copy"}

func (d Direction) String() string { return directions[d] }

// Key identifies the work that an instruction belongs to. -1 means none.
type Key struct {
	Segment int // of the graph: embedding, layers, head
	Micro   int // micro-batch
	Chunk   int // of parameters
	Dir     Direction
}

// Instr is one instruction. Its number is its index in Program.Instrs.
type Instr struct {
	Op     graph.Op
	Attr   graph.Attr
	Stream device.Stream
	Key    Key
	Args   []Region // by position, as in the operator's row of the table
	Waits  []int    // earlier instructions on other streams
	// Peers are the ranks of a collective, ascending, this one included, or the other
	// end of a message (send, recv). Instructions may share the slice.
	Peers []int
	Tag   int // of a message: equal at both ends, unique between two ranks
}

// Home is where part of a parameter's state lives between steps: whole atoms of a flat
// persistent buffer.
type Home struct {
	Param int // index in graph.Params
	Slab  int // of those that ranks have of the parameter, from 1, see graph.Slab; 0: it is whole
	// Kind says what is kept here. Weights with a home of their LowerHalves are only the upper halves.
	Kind   optimizer.Kind
	At     int // element of the parameter, or of its slab, at which Region begins; ranks may hold parts
	Region Region
	// Of is the number of elements of which Region has only those that the parameter's mask keeps; 0: it has all.
	Of int
	// Replica marks a copy that the program refreshes from the primary.
	Replica bool
}

// Elems returns how many elements of the parameter the home is of.
func (h *Home) Elems() int { return cmp.Or(h.Of, h.Region.Rows*h.Region.Cols) }

// Program is one rank's step.
type Program struct {
	Name string // free-form description for people
	Rank int
	// PlanHash identifies the plan that the program was made from; ranks with different
	// hashes must not start. Empty: no plan.
	PlanHash string
	RowUnit  int // token rows per atom, see Buffer
	// BatchRow is the first row of the global batch held by this rank's "batch.*"
	// buffers: data-parallel ranks have different sequences.
	BatchRow int
	// Runs are the tokens that these buffers have of each sequence of Sequence tokens, if ranks share sequences. Without them,
	// the rows of the buffers are consecutive rows of the batch.
	Sequence int
	Runs     []graph.Run
	Buffers  []Buffer
	Instrs   []Instr
	Homes    []Home
	Capacity [device.NumTiers]int64 // bytes; 0: the tier is absent
	Height   [device.NumTiers]int64 // bytes of arena that the program needs
	Bound    [device.NumTiers]int64 // lower bound on Height: peak of live bytes
}

// GlobalRow returns the row of the global batch that is in a row of this rank's "batch.*" buffers.
func (p *Program) GlobalRow(row int) int {
	rows := 0
	for _, r := range p.Runs {
		rows += r.Rows
	}
	if rows == 0 {
		return p.BatchRow + row
	}
	first, at := p.BatchRow+row/rows*p.Sequence, row%rows
	for _, r := range p.Runs {
		if at < r.Rows {
			return first + r.At + at
		}
		at -= r.Rows
	}
	panic("program: a row is in no run")
}

// Unlimited is the capacity of a tier without a limit.
const Unlimited int64 = math.MaxInt64

// NoLimits gives every tier unlimited capacity.
var NoLimits = [device.NumTiers]int64{Unlimited, Unlimited, Unlimited}

// ExceedsCapacity reports whether the program needs more of a tier than its capacity. It is the
// only definition of "does not fit": searches drop such programs and Verify rejects
// them.
func (p *Program) ExceedsCapacity(t device.Tier) bool { return p.Height[t] > p.Capacity[t] }

// Fits reports whether no tier is over capacity.
func (p *Program) Fits() bool {
	for t := range device.NumTiers {
		if p.ExceedsCapacity(t) {
			return false
		}
	}
	return true
}

// MayFit reports whether other addresses might fit where those of the program do not: no tier's lower bound is over capacity.
func (p *Program) MayFit() bool {
	for t, least := range p.Bound {
		if least > p.Capacity[t] {
			return false
		}
	}
	return true
}

// Dims returns the extents of an instruction's operands in the form that the operators'
// cost formulas expect. It reuses d.
func (p *Program) Dims(in *Instr, d []graph.Dim) []graph.Dim {
	d = d[:0]
	for _, r := range in.Args {
		d = append(d, graph.Dim{DType: p.Buffers[r.Buf].DType, Rows: r.Rows, Cols: r.Cols})
		if r.Absent() {
			d[len(d)-1] = graph.Dim{}
		}
	}
	return d
}

// Operand resolves a region to its address.
func (p *Program) Operand(r Region) device.Operand {
	if r.Absent() {
		return device.Operand{}
	}
	b := &p.Buffers[r.Buf]
	return device.Operand{
		Tier: b.Tier, DType: b.DType, Addr: b.Addr + int64(r.Off)*b.DType.Size(),
		Rows: r.Rows, Cols: r.Cols, Stride: r.Stride,
	}
}

// Lifetimes returns for each buffer the half-open range of instructions in which it
// holds data: [0, len(Instrs)) if persistent, empty if unused.
func (p *Program) Lifetimes() [][2]int {
	live := make([][2]int, len(p.Buffers))
	for i := range live {
		live[i] = [2]int{len(p.Instrs), 0}
		if p.Buffers[i].Persistent {
			live[i] = [2]int{0, len(p.Instrs)}
		}
	}
	for i := range p.Instrs {
		for _, r := range p.Instrs[i].Args {
			if r.Absent() {
				continue
			}
			l := &live[r.Buf]
			l[0], l[1] = min(l[0], i), max(l[1], i+1)
		}
	}
	return live
}

// BufferRegion returns the region that covers a buffer.
func (p *Program) BufferRegion(buf int) Region {
	b := &p.Buffers[buf]
	return Region{Buf: buf, Rows: b.Rows, Cols: b.Cols, Stride: b.Cols}
}

// Arg returns operand j, absent if omitted at the end.
func (in *Instr) Arg(j int) Region {
	if j < len(in.Args) {
		return in.Args[j]
	}
	return Region{}
}

// KeptOf is between the name of a content and the number of its elements, in the name of what a mask keeps of it.
const KeptOf = "|"

// Names of buffers: the step's scalars; those of the previous step, which deferred updates read; and the clip
// factor and norm of the latest gradient.
const (
	StepScalars    = "scalars"
	PendingScalars = "pending.scalars"
	Clip           = "clip"
	// ClipBefore names the content of Clip that the previous step left.
	ClipBefore = "clip.before"
)

// Moments lists the kinds of moments that the program's updates keep between steps.
func (p *Program) Moments() (list []optimizer.Kind) {
	for _, h := range p.Homes {
		if h.Kind.Moment() && !slices.Contains(list, h.Kind) {
			list = append(list, h.Kind)
		}
	}
	return list
}

// Defers reports whether a step begins with updates that the previous step left.
func (p *Program) Defers() bool {
	return slices.ContainsFunc(p.Buffers, func(b Buffer) bool { return b.Name == PendingScalars })
}

// Span returns the elements of the buffer from the region's first to the end of its last.
func (r Region) Span() (lo, hi int) { return r.Off, r.Off + (r.Rows-1)*r.Stride + r.Cols }

// NoKey is the key of what belongs to no unit.
var NoKey = Key{Segment: -1, Micro: -1, Chunk: -1}
