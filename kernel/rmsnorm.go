package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// RMSNorm (Zhang and Sennrich, 1910.07467): y = x*rrms*g with
// rrms = 1/sqrt(avg(x^2)+Eps). Derivative: with d = dy*g and xh = x*rrms,
// dx = rrms*(d - xh*avg(d*xh)).

func rmsNormRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, stats, x, g := &t[0], &t[1], &t[2], &t[3]
	for r := range x.Rows {
		var s float64
		for c := range x.Cols {
			s += x.At(r, c) * x.At(r, c)
		}
		rrms := 1 / math.Sqrt(s/float64(x.Cols)+a.Eps)
		stats.Set(r, 0, rrms)
		for c := range x.Cols {
			y.Set(r, c, x.At(r, c)*rrms*g.At(0, c))
		}
	}
}

func rmsNormDXRef(_ *Env, a *graph.Attr, t []Tensor) {
	dx, dy, x, g, stats := &t[0], &t[1], &t[2], &t[3], &t[4]
	for r := range x.Rows {
		rrms := stats.At(r, 0)
		var sx float64
		for c := range x.Cols {
			sx += dy.At(r, c) * g.At(0, c) * x.At(r, c) * rrms
		}
		for c := range x.Cols {
			xh := x.At(r, c) * rrms
			dx.put(a.Acc, r, c, rrms*(dy.At(r, c)*g.At(0, c)-xh*sx/float64(x.Cols)))
		}
	}
}

func rmsNormDWRef(_ *Env, a *graph.Attr, t []Tensor) {
	dg, dy, x, stats := &t[0], &t[1], &t[2], &t[3]
	for c := range x.Cols {
		var s float64
		for r := range x.Rows {
			s += dy.At(r, c) * x.At(r, c) * stats.At(r, 0)
		}
		dg.put(a.Acc, 0, c, s)
	}
}

func rmsNorm(e *Env, a *graph.Attr, t []Tensor) {
	body := bodyOf(rmsNormRows[float32], rmsNormRows[uint16], &t[0], &t[2])
	e.begin(a, t).past().byRows(t[2].Rows, t[2].Cols, body)
}

func rmsNormRows[T simd.Stored](c *call, w *worker, b block) {
	y, stats, x, n, v := &c.t[0], &c.t[1], &c.t[2], c.cols, functions[T](w, &c.t[0])
	g := w.load(2, &c.t[3], 0, 0, n)
	for r := b.R0; r < b.R1; r++ {
		in, out := load[T](w, 1, x, r, 0, n), dest[T](w, 0, y, r, 0, n)
		rrms := float32(1 / math.Sqrt(float64(v.SumSqDev(in, 0))/float64(n)+c.a.Eps))
		stats.row(r, 0, 1)[0] = rrms
		v.NormRMS(out, in, g, rrms)
		store(w, out, y, r, 0, n)
	}
}

func rmsNormDX(e *Env, a *graph.Attr, t []Tensor) {
	body := bodyOf(rmsNormDXRows[float32], rmsNormDXRows[uint16], &t[0], &t[1], &t[2])
	e.begin(a, t).past().byRows(t[2].Rows, t[2].Cols, body)
}

func rmsNormDXRows[T simd.Stored](c *call, w *worker, b block) {
	g := w.load(0, &c.t[3], 0, 0, c.cols)
	for r := b.R0; r < b.R1; r++ {
		normDX[T](c, w, r, g, 0, c.t[4].row(r, 0, 1)[0], false)
	}
}

func rmsNormDW(e *Env, a *graph.Attr, t []Tensor) {
	body := bodyOf(rmsNormDWColumns[float32], rmsNormDWColumns[uint16], &t[1], &t[2])
	e.begin(a, t).byColumns(t[2].Rows, t[2].Cols, t[2].band(), body)
}

func rmsNormDWColumns[T simd.Stored](c *call, w *worker, b block) {
	dg, v := w.sum(0, &c.t[0], c.a.Acc, b), functions[T](w, &c.t[0])
	ahead := c.t[1].ahead(b)
	for r := b.R0; r < b.R1; r++ {
		dy, x := load[T](w, 1, &c.t[1], r, b.C0, b.C1), load[T](w, 2, &c.t[2], r, b.C0, b.C1)
		v.NormDWR(dg, dy, x, c.t[3].row(r, 0, 1)[0], ahead)
	}
	w.store(dg, &c.t[0], 0, b.C0, b.C1)
}
