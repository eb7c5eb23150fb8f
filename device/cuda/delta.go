package cuda

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// What layers of linear attention have besides products and norms: graph/delta.go explains the rule, and kernels/delta.cuh how it is
// divided among blocks.

// decays launches a thread per token and head.
func decays(file string) operator {
	return func(b *builder) error {
		ops := b.ops()
		n := int64(ops[0].Rows) * int64(ops[0].Cols/2)
		return b.start(kernels.Unit{File: file, Defines: types(ops...)}, file, [3]int64{blocks(n, threads), 1, 1}, threads, 0, b.newArgs(ops...))
	}
}

// convRun is RUN in kernels/short_conv.cuh.
const convRun = 32

// convUnit returns the file of a convolution of x by w, and how many columns a thread has.
func convUnit(b *builder, file string, w int, wide ...device.Operand) (u kernels.Unit, v int) {
	ops := b.present(w)
	v, _ = b.vector(wide[0].Cols, wide...)
	v = min(v, 4) // of each of TAPS rows and weights
	u = kernels.Unit{File: file, Defines: fmt.Sprintf("%sACT=%d TAPS=%d VEC=%d", types(ops...), b.call.Attr.Act, b.op(w).Cols, v)}
	for _, x := range [][2]string{{"starts", "STARTS"}, {"bias", "BIAS"}, {"db", "DBIAS"}} {
		if n := numberOf(x[0], b.call.Op, ops); n > 0 {
			u.Defines += fmt.Sprintf(" %s=%d", x[1], n)
			if x[1] == "BIAS" {
				u.Defines += fmt.Sprintf(" BIAS_TYPE=%v", ops[n].DType)
			}
		}
	}
	return u, v
}

// shortConv launches a thread per run of rows and pack of columns. w is the number of the weights, before which all operands are wide.
func shortConv(file string, w int) operator {
	return func(b *builder) error {
		ops := b.ops()
		y, seq := ops[0], b.call.Attr.Seq
		unit, v := convUnit(b, file, w, ops[:w]...)
		a := b.newArgs(ops...)
		a.n[0] = int32(blocks(int64(seq), convRun))
		n := int64(y.Rows/seq) * int64(a.n[0]) * int64(y.Cols/v)
		return b.start(unit, file, [3]int64{blocks(n, threads), 1, 1}, threads, 0, a)
	}
}

// shortConvDW launches the two stages of the weights' gradients, as sums does.
func shortConvDW(b *builder) error {
	dw, dy, x := b.op(graph.ShortConvDWDW), b.op(graph.ShortConvDWDY), b.op(graph.ShortConvDWX)
	unit, v := convUnit(b, "short_conv_dw", graph.ShortConvDWW, dy, x)
	piece := b.sumPiece(128)
	unit.Defines += fmt.Sprintf(" SUM_ROWS=%d", piece)
	weights := dw.Dim().Elems()
	if !b.op(graph.ShortConvDWDBias).Absent() {
		weights += int64(dw.Rows)
	}
	most := int(min(b.room/(4*weights), 65535))
	if most < 1 {
		return fmt.Errorf("gradients of %d weights are too many for the scratch memory of %d bytes", weights, b.room)
	}
	for first, all := 0, int(blocks(int64(x.Rows), int64(piece))); first == 0 || first < all; first += most {
		a := b.newArgs(b.ops()...)
		a.n[0], a.n[1] = int32(min(most, all-first)), int32(first)
		if first > 0 {
			a.accum = 1
		}
		if err := b.start(unit, "pieces", [3]int64{blocks(int64(x.Cols), int64(threads*v)), int64(a.n[0]), 1}, threads, 0, a); err != nil {
			return err
		}
		if err := b.start(unit, "total", [3]int64{blocks(weights, threads), 1, 1}, threads, 0, a); err != nil {
			return err
		}
	}
	return nil
}

// shortConvAt launches a thread per pack of columns.
func shortConvAt(b *builder) error {
	y, past, x := b.op(graph.ShortConvAtY), b.op(graph.ShortConvAtPast), b.op(graph.ShortConvAtX)
	unit, v := convUnit(b, "short_conv_at", graph.ShortConvAtW, y, past, x)
	return b.start(unit, unit.File, [3]int64{blocks(int64(y.Cols/v), threads), 1, 1}, threads, 0, b.newArgs(b.ops()...))
}

// deltaThreads and deltaWidth are THREADS and WIDTH in kernels/delta.cuh.
const (
	deltaThreads = 256
	deltaWidth   = 32
)

// delta is the geometry of a gated delta rule.
type delta struct {
	unit        kernels.Unit
	heads, seq  int
	keys, vals  int // columns of a head
	chunk, kept int
}

// deltaOf returns that of a call with results like o.
func deltaOf(b *builder, file string, last, qkv, o int) delta {
	at := &b.call.Attr
	d := delta{heads: at.Heads, seq: at.Seq, keys: at.HeadDim, vals: graph.DeltaWidth(at, b.op(o).Dim()), chunk: graph.DeltaChunk(at.Seq), kept: graph.DeltaKept(at.Seq)}
	v, _ := b.vector(d.keys, b.op(qkv))
	d.setUnit(b, file, last, graph.DeltaStateCols(at.Seq, d.keys*d.vals), v)
	return d
}

// setUnit sets the file, whose operands may be absent after number last, with so many columns of kept states.
func (d *delta) setUnit(b *builder, file string, last, cols, v int) {
	ops := b.present(last)
	d.unit = kernels.Unit{File: file, Defines: fmt.Sprintf("%sKEYS=%d VALUES=%d CHUNK=%d KEPT=%d STATE_COLS=%d VEC=%d", types(ops...), d.keys, d.vals, d.chunk, d.kept, cols, min(v, 4))}
	if n := numberOf("starts", b.call.Op, ops); n > 0 {
		d.unit.Defines += fmt.Sprintf(" STARTS=%d", n)
	}
}

// slices returns the number of blocks among which the columns of a state are divided.
func (d *delta) slices() int64 { return blocks(int64(d.vals), deltaWidth) }

// shared returns the bytes of shared memory of a block: Room in kernels/delta.cuh, some states, some rows of slices, and other numbers.
func (d *delta) shared(states, slices, others int) int {
	rows, keys := max(d.chunk, 4), (d.keys+3)/4*4
	return 4 * (2*rows*(keys+4) + 2*rows*(rows+4) + 8*rows + (states*keys+slices*rows)*(deltaWidth+4) + others)
}

// deltaRule launches a block per slice of columns, head and sequence.
func deltaRule(b *builder) error {
	d, o := deltaOf(b, "delta_rule", graph.DeltaRuleGates, graph.DeltaRuleQKV, graph.DeltaRuleO), b.op(graph.DeltaRuleO)
	return b.start(d.unit, "delta_rule", [3]int64{d.slices(), int64(d.heads), int64(o.Rows / d.seq)}, deltaThreads, d.shared(1, 2, 0), b.newArgs(b.ops()...))
}

// deltaRuleAt launches a block per slice of columns and head.
func deltaRuleAt(b *builder) error {
	at, ops := &b.call.Attr, b.ops()
	state := ops[graph.DeltaRuleAtState]
	unit := kernels.Unit{File: "delta_rule_at", Defines: fmt.Sprintf("%sKEYS=%d VALUES=%d", types(ops...), at.HeadDim, state.Cols)}
	return b.start(unit, unit.File, [3]int64{blocks(int64(state.Cols), 32), int64(at.Heads), 1}, threads, 0, b.newArgs(ops...))
}

// deltaPlaces says how the backward pass is divided among launches: each of so many rows of so many sequences, for which there is
// room in scratch memory.
type deltaPlaces struct{ rows, sequences int }

// placesIn divides the backward pass: many rows and sequences at a time keep many blocks busy.
func (d *delta) placesIn(room int64, sequences int) (p deltaPlaces, err error) {
	one := 4 * int64(d.heads) * int64(d.keys) * int64(d.vals)
	need := func(rows int) int64 { return one * (2*blocks(int64(rows), int64(d.chunk)) + 1) }
	for p.rows = d.kept; p.rows > d.chunk && need(p.rows) > room; p.rows /= 2 {
	}
	if need(p.rows) > room {
		return p, fmt.Errorf("states of %d heads of %d x %d need %d bytes of scratch memory, but there are %d", d.heads, d.keys, d.vals, need(p.rows), room)
	}
	for p.rows < d.seq && need(2*p.rows) <= room {
		p.rows *= 2
	}
	p.rows = min(p.rows, d.seq)
	p.sequences = int(min(room/need(p.rows), int64(sequences)))
	return p, nil
}

// deltaRuleBwd launches the backward pass.
func deltaRuleBwd(b *builder) error {
	d := deltaOf(b, "delta_rule_bwd", graph.DeltaRuleBwdStates, graph.DeltaRuleBwdQKV, graph.DeltaRuleBwdDO)
	return d.backward(b, b.op(graph.DeltaRuleBwdDO).Rows/d.seq)
}

// backward launches three kernels for some rows of some of all sequences at a time, the last rows first.
func (d *delta) backward(b *builder, all int) error {
	p, err := d.placesIn(b.room, all)
	if err != nil {
		return err
	}
	a := b.newArgs(b.ops()...)
	a.n[3] = int32(blocks(int64(p.rows), int64(d.chunk)))
	for first := 0; first < all; first += p.sequences {
		n := min(p.sequences, all-first)
		a.n[2], a.n[4] = int32(first), int32(n)
		for row := (d.seq - 1) / p.rows * p.rows; row >= 0; row -= p.rows {
			end := min(row+p.rows, d.seq)
			a.n[0], a.n[1] = int32(row), int32(end)
			parts := blocks(int64(end-row), int64(d.kept))
			shared := d.shared(1, 2, 0)
			if err := b.start(d.unit, "remake", [3]int64{parts * d.slices(), int64(d.heads), int64(n)}, deltaThreads, shared, a); err != nil {
				return err
			}
			if err := b.start(d.unit, "carry", [3]int64{d.slices(), int64(d.heads), int64(n)}, deltaThreads, shared, a); err != nil {
				return err
			}
			if err := b.start(d.unit, "gradients", [3]int64{blocks(int64(end-row), int64(d.chunk)), int64(b.call.Attr.KVHeads), int64(n)}, deltaThreads, d.shared(2, 4, 32), a); err != nil {
				return err
			}
		}
	}
	return nil
}
