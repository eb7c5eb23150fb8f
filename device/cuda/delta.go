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
	if n := numberOf("starts", b.call.Op, ops); n > 0 {
		u.Defines += fmt.Sprintf(" STARTS=%d", n)
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
	weights := int64(dw.Rows) * int64(dw.Cols)
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
