package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// Products in FP8 (see graph.MaxE4M3). Processors have no instructions for them, so both matrices are rounded into memory that stays in
// a cache, as the numbers of bf16 that they then are, and multiplied as usual: for some columns of the result at a time, and of these for
// some rows. A result is one chain over the inner dimension, which is never divided.
//
// Known weakness: what tensor cores gain is lost here twice, since rounding takes time and products are those of bf16. The CPU shows what
// training in FP8 comes to, and is no place to do it.

// product8 is product for matrices that are rounded to E4M3.
func (e *Env) product8(turned bool, y, x, w *Tensor, init gemm.Init) {
	step := max(e.panelElems/max(x.Cols, 1), 1)
	for c := 0; c < y.Cols; c += step {
		cols := min(step, y.Cols-c)
		of := band(w, 0, w.Rows, c, cols)
		if turned {
			of = band(w, c, cols, 0, w.Cols)
		}
		weights := e.round8(&e.panel, &of, !turned)
		for r := 0; r < y.Rows; r += step {
			rows := min(step, y.Rows-r)
			to, from := band(y, r, rows, c, cols), band(x, r, rows, 0, x.Cols)
			e.multiply(turned, &to, e.round8(&e.rounded, &from, false), weights, initFrom(init, r, c, cols))
		}
	}
}

// round8 rounds a matrix to E4M3, its rows, or its columns, each times a power of two.
func (e *Env) round8(to, x *Tensor, columns bool) *Tensor {
	to.resize(graph.BF16, x.Rows, x.Cols)
	c := e.begin(nil, nil)
	c.t[0], c.t[1] = *to, *x
	if columns {
		c.blocks(x.Rows, x.Cols, x.Rows, roundedColumns, roundColumns)
	} else {
		c.byRows(x.Rows, x.Cols, roundRows)
	}
	return to
}

// roundedColumns is the number of columns that are rounded together, since those next to each other share lines of memory.
const roundedColumns = 64

func roundRows(c *call, w *worker, b block) {
	y, x := &c.t[0], &c.t[1]
	for r := b.R0; r < b.R1; r++ {
		row, top := w.load(0, x, r, 0, x.Cols), uint32(0)
		for _, v := range row {
			top = max(top, magnitude(v))
		}
		scale, to := graph.Scale8(math.Float32frombits(top)), y.row16(r, 0, y.Cols)
		for i, v := range row {
			to[i] = bf16Of(graph.Round8(v, scale))
		}
	}
}

func roundColumns(c *call, w *worker, b block) {
	y, x, scales := &c.t[0], &c.t[1], w.tmp(1, b.C1-b.C0)
	clear(scales)
	for r := range x.Rows {
		for i, v := range w.load(0, x, r, b.C0, b.C1) {
			scales[i] = math.Float32frombits(max(math.Float32bits(scales[i]), magnitude(v)))
		}
	}
	for i, top := range scales {
		scales[i] = graph.Scale8(top)
	}
	for r := range x.Rows {
		to := y.row16(r, b.C0, b.C1)
		for i, v := range w.load(0, x, r, b.C0, b.C1) {
			to[i] = bf16Of(graph.Round8(v, scales[i]))
		}
	}
}

// magnitude returns the bits of |x|, which are in the order of magnitudes, NaNs above all.
func magnitude(x float32) uint32 { return math.Float32bits(x) &^ (1 << 31) }

// bf16Of returns a number that bf16 has.
func bf16Of(x float32) uint16 { return uint16(math.Float32bits(x) >> 16) }

// band returns rows and columns of a matrix.
func band(t *Tensor, r, rows, c, cols int) Tensor {
	y, at := *t, r*t.Stride+c
	y.Rows, y.Cols = rows, cols
	if t.DType == graph.BF16 {
		y.BF16 = t.BF16[at:]
	} else {
		y.F32 = t.F32[at:]
	}
	return y
}

// initFrom returns n columns of initial values, from a row and a column on.
func initFrom(i gemm.Init, r, c, n int) gemm.Init {
	if at := r * i.Residual.Stride; i.Residual.Data != nil {
		i.Residual.Data = i.Residual.Data[at:]
	} else if i.Residual.Half != nil {
		i.Residual.Half = i.Residual.Half[at:]
	}
	return initOf(i, c, n)
}

// rounded8 returns a copy of a matrix with its rows, or its columns, rounded to E4M3, for references.
func rounded8(x *Tensor, columns bool) *Tensor {
	y := NewTensor(graph.F64, x.Rows, x.Cols)
	n, each, at := x.Rows, x.Cols, func(i, k int) (r, c int) { return i, k }
	if columns {
		n, each, at = x.Cols, x.Rows, func(i, k int) (r, c int) { return k, i }
	}
	for i := range n {
		top := 0.0
		for k := range each {
			r, c := at(i, k)
			top = max(top, math.Abs(x.At(r, c)))
		}
		scale := graph.Scale8(float32(top))
		for k := range each {
			r, c := at(i, k)
			y.Set(r, c, float64(graph.Round8(float32(x.At(r, c)), scale)))
		}
	}
	return &y
}
