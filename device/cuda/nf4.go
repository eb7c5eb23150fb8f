package cuda

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// Weights in 4 bits (graph.NF4Block) are unpacked to scratch memory before they are multiplied, for as
// many columns of the result at a time as it has room for. The inner dimension is not divided, and the
// division does not depend on the rows, so no plan changes a bit. Experts have too many weights for
// that: see expertLinear.
//
// Known weakness: a product of few rows, as in generation, reads and writes four times the bytes
// that it needs.

// weighted adds a product whose b is a weight, packed or not.
func (b *builder) weighted(p product) error {
	switch {
	case b.call.Attr.FP8:
		return inFP8(b, p)
	case !b.call.Attr.NF4:
		return b.product(p)
	}
	inner := p.a.Cols
	step := b.panelCols(&p)
	if step < 1 {
		return fmt.Errorf("%d inputs are too many for the scratch memory of %d bytes", inner, b.room)
	}
	for c := 0; c < p.y.Cols; c += step {
		n := min(step, p.y.Cols-c)
		part := p
		part.y, part.bias, part.res = columnsOf(p.y, c, n), columnsOf(p.bias, c, n), columnsOf(p.res, c, n)
		var err error
		if p.tb {
			part.b, err = b.unpack(p.b, c, n, 0, inner, inner)
		} else {
			part.b, err = b.unpack(p.b, 0, inner, c, n, p.y.Cols)
		}
		if err == nil {
			err = b.product(part)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// panelCols returns how many columns of a result are computed at a time, in whole blocks.
func (b *builder) panelCols(p *product) int {
	inner, size := int64(p.a.Cols), p.b.DType.Size()
	if p.tb { // rows of the panel
		inner = blocks(inner, graph.NF4Block) * graph.NF4Block
	}
	return int(b.room/(inner*size)) / graph.NF4Block * graph.NF4Block
}

// unpack unpacks elements [lo, lo+n) of rows of a weight, from first on, to scratch memory. The
// weight's rows have cols elements.
func (b *builder) unpack(w device.Operand, first, rows, lo, n, cols int) (device.Operand, error) {
	y := device.Operand{Tier: device.DeviceTier, DType: w.DType, Addr: int64(b.scratch) - int64(b.base[device.DeviceTier]),
		Rows: rows, Cols: n, Stride: int(blocks(int64(n), graph.NF4Block)) * graph.NF4Block}
	v := 16 / int(w.DType.Size())
	a := b.newArgs(y, w)
	a.n = [8]int32{int32(lo), int32(first), int32(cols)}
	unit := kernels.Unit{File: "nf4", Defines: fmt.Sprintf("%sVEC=%d", types(y, w), v)}
	return y, b.start(unit, "nf4", [3]int64{blocks(int64(rows)*int64(y.Stride/v), threads), 1, 1}, threads, 0, a)
}
