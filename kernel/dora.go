package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// Direction divides columns by the lengths of the rows of w + Scale*b.a, which it computes anew in each call: that costs as much as the
// main product with as many tokens as half the rank. Gain: y = x*g + bias + res.

func directionRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, down, up, w := &t[graph.DirectionY], &t[graph.DirectionDown], &t[graph.DirectionUp], t[graph.DirectionW]
	if a.NF4 {
		w = unpacked(&w, down.Cols)
	}
	for c := range y.Cols {
		var sum float64
		for k := range down.Cols {
			v := w.At(c, k)
			for r := range down.Rows {
				v += a.Scale * up.At(c, r) * down.At(r, k)
			}
			sum += v * v
		}
		for r := range y.Rows {
			y.Set(r, c, y.At(r, c)/math.Sqrt(sum))
		}
	}
}

// lengthRows is the number of rows of a weight that a task has.
const lengthRows = 8

func direction(e *Env, a *graph.Attr, t []Tensor) {
	y, down, w := &t[graph.DirectionY], &t[graph.DirectionDown], &t[graph.DirectionW]
	if n := y.Cols + down.Rows*down.Cols; cap(e.inverse) < n {
		e.inverse = make([]float32, n)
	}
	inverse := e.inverse[:y.Cols+down.Rows*down.Cols]
	wide := Tensor{DType: graph.F32, Rows: down.Rows, Cols: down.Cols, Stride: down.Cols, F32: inverse[y.Cols:]}
	e.begin(nil, []Tensor{wide, *down}).byRows(wide.Rows, wide.Cols, func(c *call, w *worker, b block) {
		for r := b.R0; r < b.R1; r++ {
			copy(c.t[0].row(r, b.C0, b.C1), w.load(0, &c.t[1], r, b.C0, b.C1))
		}
	})
	step := y.Cols
	if a.NF4 {
		step = e.panelCols(down.Cols)
	}
	for c := 0; c < y.Cols; c += step {
		n, rows := min(step, y.Cols-c), *w
		if a.NF4 {
			rows = *e.unpack(w, w.DType, true, down.Cols, y.Cols, [2]int{c, n})
		}
		call := e.begin(a, []Tensor{rows, t[graph.DirectionUp], wide, {DType: graph.F32, Rows: 1, Cols: y.Cols, Stride: y.Cols, F32: inverse[:y.Cols]}})
		call.n[0] = c
		call.blocks(n, down.Cols, lengthRows, down.Cols, lengthsBody)
	}
	scale := e.begin(a, []Tensor{*y, {DType: graph.F32, Rows: 1, Cols: y.Cols, Stride: y.Cols, F32: inverse[:y.Cols]}})
	scale.byRows(y.Rows, y.Cols, bodyOf(scaleColumns[float32], scaleColumns[uint16], y))
}

// lengthsBody computes the inverse lengths of some rows: those of weights from row n[0] on.
func lengthsBody(c *call, w *worker, b block) {
	rows, up, down, inverse, first := &c.t[0], &c.t[1], &c.t[2], &c.t[3], c.n[0]
	n, cols := b.R1-b.R0, down.Cols
	sum, factors := w.tmp(2, n*cols), w.tmp(3, n*up.Cols)
	for i := range n {
		copy(sum[i*cols:][:cols], w.load(4, rows, b.R0+i, 0, cols))
		for k, v := range w.load(5, up, first+b.R0+i, 0, up.Cols) {
			factors[i*up.Cols+k] = v * float32(c.a.Scale)
		}
	}
	all := gemm.Matrix{Data: sum, Stride: cols}
	w.serial.Gemm(gemm.NN, n, cols, up.Cols, gemm.Matrix{Data: factors, Stride: up.Cols}, down.matrix(), all, gemm.Init{Residual: all})
	for i := range n {
		inverse.F32[first+b.R0+i] = float32(1 / math.Sqrt(w.v.SumSq64(sum[i*cols:][:cols])))
	}
}

func scaleColumns[T simd.Stored](c *call, w *worker, b block) {
	y, by, v := &c.t[0], c.t[1].row(0, 0, c.cols), functions[T](w, &c.t[0])
	for r := b.R0; r < b.R1; r++ {
		row := load[T](w, 0, y, r, 0, c.cols)
		v.NormRMS(row, row, by, 1)
		store(w, row, y, r, 0, c.cols)
	}
}

func gainRef(_ *Env, _ *graph.Attr, t []Tensor) {
	y, x, g, bias, res := &t[graph.GainY], &t[graph.GainX], &t[graph.GainBy], optional(t, graph.GainBias), optional(t, graph.GainRes)
	for r := range y.Rows {
		for c := range y.Cols {
			v := x.At(r, c) * g.At(0, c)
			if bias != nil {
				v += bias.At(0, c)
			}
			if res != nil {
				v += res.At(r, c)
			}
			y.Set(r, c, v)
		}
	}
}

func applyGain(e *Env, a *graph.Attr, t []Tensor) {
	y := &t[graph.GainY]
	e.begin(a, t).bypassCaches().byRows(y.Rows, y.Cols, func(c *call, w *worker, b block) {
		y, x, res, n := &c.t[graph.GainY], &c.t[graph.GainX], &c.t[graph.GainRes], c.cols
		v := w.storesFor(y)
		g, bias := w.load(1, &c.t[graph.GainBy], 0, 0, n), w.orZeros(2, &c.t[graph.GainBias], 0, n)
		for r := b.R0; r < b.R1; r++ {
			add := bias
			if !res.Absent() {
				add = w.tmp(3, n)
				w.v.Sum2(add, w.load(4, res, r, 0, n), bias, 0)
			}
			out := w.dest(0, y, r, 0, n)
			v.Norm(out, w.load(5, x, r, 0, n), g, add, 0, 1)
			w.store(out, y, r, 0, n)
		}
	})
}

func gainGradRef(_ *Env, a *graph.Attr, t []Tensor) {
	dg, dy, x := &t[graph.GainGradDBy], &t[graph.GainGradDY], &t[graph.GainGradX]
	for c := range dg.Cols {
		var sum float64
		for r := range dy.Rows {
			sum += dy.At(r, c) * x.At(r, c)
		}
		dg.put(a.Acc, 0, c, sum)
	}
}

func gainGrad(e *Env, a *graph.Attr, t []Tensor) {
	dy, x := &t[graph.GainGradDY], &t[graph.GainGradX]
	e.begin(a, t).byColumns(x.Rows, x.Cols, x.band(), bodyOf(gainGradColumns[float32], gainGradColumns[uint16], dy, x))
}

func gainGradColumns[T simd.Stored](c *call, w *worker, b block) {
	dg, dy, x := w.sum(0, &c.t[graph.GainGradDBy], c.a.Acc, b), &c.t[graph.GainGradDY], &c.t[graph.GainGradX]
	v, ahead := functions[T](w, &c.t[graph.GainGradDBy]), dy.ahead(b)
	for r := b.R0; r < b.R1; r++ {
		v.NormDWR(dg, load[T](w, 2, dy, r, b.C0, b.C1), load[T](w, 3, x, r, b.C0, b.C1), 1, ahead)
	}
	w.store(dg, &c.t[graph.GainGradDBy], 0, b.C0, b.C1)
}
