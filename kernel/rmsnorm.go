package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// RMSNorm (Zhang and Sennrich, 1910.07467): y = x*rrms*g + res with
// rrms = 1/sqrt(avg(x^2)+Eps), in each group of columns by itself. Derivative: with
// d = dy*g and xh = x*rrms, dx = rrms*(d - xh*avg(d*xh)).

// gain returns a column's gain.
func gain(a *graph.Attr, g *Tensor, c int) float64 {
	if a.UnitOffset {
		return 1 + g.At(0, c)
	}
	return g.At(0, c)
}

func rmsNormRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, stats, x, g := &t[graph.RMSNormY], &t[graph.RMSNormStats], &t[graph.RMSNormX], &t[graph.RMSNormGain]
	for r := range x.Rows {
		for k := range stats.Cols {
			var s float64
			for c := range g.Cols {
				v := x.At(r, k*g.Cols+c)
				s += v * v
			}
			rrms := 1 / math.Sqrt(s/float64(g.Cols)+a.Eps)
			stats.Set(r, k, rrms)
			for c := range g.Cols {
				v := x.At(r, k*g.Cols+c) * rrms * gain(a, g, c)
				if optional(t, graph.RMSNormRes) != nil {
					v += t[graph.RMSNormRes].At(r, k*g.Cols+c)
				}
				y.Set(r, k*g.Cols+c, v)
			}
		}
	}
}

func rmsNormDXRef(_ *Env, a *graph.Attr, t []Tensor) {
	dx, dy, x, g := &t[graph.RMSNormDXDX], &t[graph.RMSNormDXDY], &t[graph.RMSNormDXX], &t[graph.RMSNormDXGain]
	stats := &t[graph.RMSNormDXStats]
	for r := range x.Rows {
		for k := range stats.Cols {
			rrms, c0 := stats.At(r, k), k*g.Cols
			var sx float64
			for c := range g.Cols {
				sx += dy.At(r, c0+c) * gain(a, g, c) * x.At(r, c0+c) * rrms
			}
			for c := range g.Cols {
				xh := x.At(r, c0+c) * rrms
				dx.put(a.Acc, r, c0+c, rrms*(dy.At(r, c0+c)*gain(a, g, c)-xh*sx/float64(g.Cols)))
			}
		}
	}
}

func rmsNormDWRef(_ *Env, a *graph.Attr, t []Tensor) {
	dg, dy, x, stats := &t[graph.RMSNormDWDGain], &t[graph.RMSNormDWDY], &t[graph.RMSNormDWX], &t[graph.RMSNormDWStats]
	for c := range dg.Cols {
		var s float64
		for r := range x.Rows {
			for k := range stats.Cols {
				s += dy.At(r, k*dg.Cols+c) * x.At(r, k*dg.Cols+c) * stats.At(r, k)
			}
		}
		dg.put(a.Acc, 0, c, s)
	}
}

func rmsNorm(e *Env, a *graph.Attr, t []Tensor) {
	body := bodyOf(rmsNormRows[float32], rmsNormRows[uint16], &t[graph.RMSNormY], &t[graph.RMSNormX])
	if optional(t, graph.RMSNormRes) != nil {
		body = rmsNormAdded
	}
	e.begin(a, t).bypassCaches().byRows(t[graph.RMSNormX].Rows, t[graph.RMSNormX].Cols, body)
}

func rmsNormRows[T simd.Stored](c *call, w *worker, b block) {
	y, stats, x, n := &c.t[graph.RMSNormY], &c.t[graph.RMSNormStats], &c.t[graph.RMSNormX], c.cols
	v := functions[T](w, &c.t[graph.RMSNormY])
	g := w.gains(2, c.a, &c.t[graph.RMSNormGain])
	for r := b.R0; r < b.R1; r++ {
		out := dest[T](w, 0, y, r, 0, n)
		normRMS(c, v, out, load[T](w, 1, x, r, 0, n), g, stats.row(r, 0, stats.Cols))
		store(w, out, y, r, 0, n)
	}
}

// rmsNormAdded adds the residual in a float32 buffer, so that bf16 results are rounded once.
func rmsNormAdded(c *call, w *worker, b block) {
	y, stats, x, res, n := &c.t[graph.RMSNormY], &c.t[graph.RMSNormStats], &c.t[graph.RMSNormX], &c.t[graph.RMSNormRes], c.cols
	g, normed := w.gains(2, c.a, &c.t[graph.RMSNormGain]), w.tmp(4, n)
	for r := b.R0; r < b.R1; r++ {
		out := w.dest(0, y, r, 0, n)
		normRMS(c, &w.v.Rows, normed, w.load(1, x, r, 0, n), g, stats.row(r, 0, stats.Cols))
		w.storesFor(y).Sum2(out, w.load(3, res, r, 0, n), normed, res.Stride)
		w.store(out, y, r, 0, n)
	}
}

// normRMS normalises the groups of a row.
func normRMS[T simd.Stored](c *call, v *simd.Rows[T], out, in []T, g, stats []float32) {
	n := len(g)
	for k := range stats {
		x := in[k*n : (k+1)*n]
		stats[k] = float32(1 / math.Sqrt(float64(v.SumSqDev(x, 0))/float64(n)+c.a.Eps))
		v.NormRMS(out[k*n:(k+1)*n], x, g, stats[k])
	}
}

// gains returns all columns' gains, in buffer k if need be.
func (w *worker) gains(k int, a *graph.Attr, g *Tensor) []float32 {
	stored := w.load(k, g, 0, 0, g.Cols)
	if !a.UnitOffset {
		return stored
	}
	sum := w.tmp(k, g.Cols)
	for i, v := range stored {
		sum[i] = 1 + v
	}
	return sum
}

func rmsNormDX(e *Env, a *graph.Attr, t []Tensor) {
	body := bodyOf(rmsNormDXRows[float32], rmsNormDXRows[uint16], &t[graph.RMSNormDXDX], &t[graph.RMSNormDXDY], &t[graph.RMSNormDXX])
	e.begin(a, t).bypassCaches().byRows(t[graph.RMSNormDXX].Rows, t[graph.RMSNormDXX].Cols, body)
}

func rmsNormDXRows[T simd.Stored](c *call, w *worker, b block) {
	g, stats := w.gains(0, c.a, &c.t[graph.RMSNormDXGain]), &c.t[graph.RMSNormDXStats]
	for r := b.R0; r < b.R1; r++ {
		for k, rrms := range stats.row(r, 0, stats.Cols) {
			normDX[T](c, w, r, k*len(g), g, 0, rrms, false)
		}
	}
}

func rmsNormDW(e *Env, a *graph.Attr, t []Tensor) {
	body := bodyOf(rmsNormDWColumns[float32], rmsNormDWColumns[uint16], &t[graph.RMSNormDWDY], &t[graph.RMSNormDWX])
	e.begin(a, t).byColumns(t[graph.RMSNormDWX].Rows, t[graph.RMSNormDWDGain].Cols, t[graph.RMSNormDWX].band(), body)
}

func rmsNormDWColumns[T simd.Stored](c *call, w *worker, b block) {
	dg, v := w.sum(0, &c.t[graph.RMSNormDWDGain], c.a.Acc, b), functions[T](w, &c.t[graph.RMSNormDWDGain])
	stats, n := &c.t[graph.RMSNormDWStats], c.t[graph.RMSNormDWDGain].Cols
	ahead := c.t[graph.RMSNormDWDY].ahead(b)
	if stats.Cols > 1 { // a row has more to come
		ahead = n
	}
	for r := b.R0; r < b.R1; r++ {
		for k, rrms := range stats.row(r, 0, stats.Cols) {
			lo, hi := k*n+b.C0, k*n+b.C1
			v.NormDWR(dg, load[T](w, 1, &c.t[graph.RMSNormDWDY], r, lo, hi), load[T](w, 2, &c.t[graph.RMSNormDWX], r, lo, hi), rrms, ahead)
		}
	}
	w.store(dg, &c.t[graph.RMSNormDWDGain], 0, b.C0, b.C1)
}
