package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// LayerNorm (Ba, Kiros, Hinton, 1607.06450): y = xh*g + b with
// xh = (x-mean)*rstd over the row, rstd = 1/sqrt(variance+Eps). The deviations
// are summed in a second pass over the row, which is in the cache: the
// one-pass formula cancels where the mean is large.
//
// Derivative: with d = dy*g, dx = rstd*(d - avg(d) - xh*avg(d*xh)).

func layerNormRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, stats, x, g := &t[graph.LayerNormY], &t[graph.LayerNormStats], &t[graph.LayerNormX], &t[graph.LayerNormGain]
	b := optional(t, graph.LayerNormBias)
	n := float64(x.Cols)
	for r := range x.Rows {
		var mean, variance float64
		for c := range x.Cols {
			mean += x.At(r, c) / n
		}
		for c := range x.Cols {
			d := x.At(r, c) - mean
			variance += d * d / n
		}
		rstd := 1 / math.Sqrt(variance+a.Eps)
		stats.Set(r, 0, mean)
		stats.Set(r, 1, rstd)
		for c := range x.Cols {
			v := (x.At(r, c) - mean) * rstd * g.At(0, c)
			if b != nil {
				v += b.At(0, c)
			}
			y.Set(r, c, v)
		}
	}
}

func layerNormDXRef(_ *Env, a *graph.Attr, t []Tensor) {
	dx, dy, x, g := &t[graph.LayerNormDXDX], &t[graph.LayerNormDXDY], &t[graph.LayerNormDXX], &t[graph.LayerNormDXGain]
	stats := &t[graph.LayerNormDXStats]
	n := float64(x.Cols)
	for r := range x.Rows {
		mean, rstd := stats.At(r, 0), stats.At(r, 1)
		var s, sx float64
		for c := range x.Cols {
			d := dy.At(r, c) * g.At(0, c)
			s += d
			sx += d * (x.At(r, c) - mean) * rstd
		}
		for c := range x.Cols {
			xh := (x.At(r, c) - mean) * rstd
			dx.put(a.Acc, r, c, rstd*(dy.At(r, c)*g.At(0, c)-s/n-xh*sx/n))
		}
	}
}

func layerNormDWRef(_ *Env, a *graph.Attr, t []Tensor) {
	dg, db, dy, x := &t[graph.LayerNormDWDGain], optional(t, graph.LayerNormDWDBias), &t[graph.LayerNormDWDY], &t[graph.LayerNormDWX]
	stats := &t[graph.LayerNormDWStats]
	for c := range x.Cols {
		var sg, sb float64
		for r := range x.Rows {
			d := dy.At(r, c)
			sg += d * (x.At(r, c) - stats.At(r, 0)) * stats.At(r, 1)
			sb += d
		}
		dg.put(a.Acc, 0, c, sg)
		if db != nil {
			db.put(a.Acc, 0, c, sb)
		}
	}
}

func layerNorm(e *Env, a *graph.Attr, t []Tensor) {
	body := bodyOf(layerNormRows[float32], layerNormRows[uint16], &t[graph.LayerNormY], &t[graph.LayerNormX])
	e.begin(a, t).bypassCaches().byRows(t[graph.LayerNormX].Rows, t[graph.LayerNormX].Cols, body)
}

func layerNormRows[T simd.Stored](c *call, w *worker, b block) {
	y, stats, x, n := &c.t[graph.LayerNormY], &c.t[graph.LayerNormStats], &c.t[graph.LayerNormX], c.cols
	v := functions[T](w, &c.t[graph.LayerNormY])
	g, bias := w.load(2, &c.t[graph.LayerNormGain], 0, 0, n), w.orZeros(3, &c.t[graph.LayerNormBias], 0, n)
	for r := b.R0; r < b.R1; r++ {
		in, out := load[T](w, 1, x, r, 0, n), dest[T](w, 0, y, r, 0, n)
		mean := v.Sum(in) / float32(n)
		rstd := float32(1 / math.Sqrt(float64(v.SumSqDev(in, mean))/float64(n)+c.a.Eps))
		s := stats.row(r, 0, 2)
		s[0], s[1] = mean, rstd
		v.Norm(out, in, g, bias, mean, rstd)
		store(w, out, y, r, 0, n)
	}
}

// orZeros loads the columns of a vector, which are zeros if it is absent.
func (w *worker) orZeros(k int, t *Tensor, lo, hi int) []float32 {
	if !t.Absent() {
		return w.load(k, t, 0, lo, hi)
	}
	x := w.tmp(k, hi-lo)
	clear(x)
	return x
}

func layerNormDX(e *Env, a *graph.Attr, t []Tensor) {
	body := bodyOf(layerNormDXRows[float32], layerNormDXRows[uint16], &t[graph.LayerNormDXDX], &t[graph.LayerNormDXDY], &t[graph.LayerNormDXX])
	e.begin(a, t).bypassCaches().byRows(t[graph.LayerNormDXX].Rows, t[graph.LayerNormDXX].Cols, body)
}

func layerNormDXRows[T simd.Stored](c *call, w *worker, b block) {
	g := w.load(0, &c.t[graph.LayerNormDXGain], 0, 0, c.cols)
	for r := b.R0; r < b.R1; r++ {
		s := c.t[graph.LayerNormDXStats].row(r, 0, 2)
		normDX[T](c, w, r, 0, g, s[0], s[1], true)
	}
}

// normDX computes len(g) columns of row r of dx, from column lo on. RMSNorm passes mean 0 and
// centred false, which drops the term of the mean; RMSNormDX has the same operands.
func normDX[T simd.Stored](c *call, w *worker, r, lo int, g []float32, mean, rstd float32, centred bool) {
	dx, hi, v := &c.t[graph.LayerNormDXDX], lo+len(g), functions[T](w, &c.t[graph.LayerNormDXDX])
	dy, x := load[T](w, 1, &c.t[graph.LayerNormDXDY], r, lo, hi), load[T](w, 2, &c.t[graph.LayerNormDXX], r, lo, hi)
	s, sx := v.NormSums(dy, x, g, mean, rstd)
	if !centred {
		s = 0
	}
	s, sx = s/float32(len(g)), sx/float32(len(g))
	var out []T
	if c.a.Acc {
		out = load[T](w, 3, dx, r, lo, hi)
		v.NormDXA(out, dy, x, g, mean, rstd, s, sx)
	} else {
		out = dest[T](w, 3, dx, r, lo, hi)
		v.NormDX(out, dy, x, g, mean, rstd, s, sx)
	}
	store(w, out, dx, r, lo, hi)
}

func layerNormDW(e *Env, a *graph.Attr, t []Tensor) {
	body := bodyOf(layerNormDWColumns[float32], layerNormDWColumns[uint16], &t[graph.LayerNormDWDY], &t[graph.LayerNormDWX])
	e.begin(a, t).byColumns(t[graph.LayerNormDWX].Rows, t[graph.LayerNormDWX].Cols, t[graph.LayerNormDWX].band(), body)
}

func layerNormDWColumns[T simd.Stored](c *call, w *worker, b block) {
	hasBias := !c.t[graph.LayerNormDWDBias].Absent()
	dg, db := w.sum(0, &c.t[graph.LayerNormDWDGain], c.a.Acc, b), w.tmp(1, b.C1-b.C0) // the second is dropped without a bias
	if hasBias {
		db = w.sum(1, &c.t[graph.LayerNormDWDBias], c.a.Acc, b)
	} else {
		clear(db)
	}
	v := functions[T](w, &c.t[graph.LayerNormDWDGain])
	ahead := c.t[graph.LayerNormDWDY].ahead(b)
	for r := b.R0; r < b.R1; r++ {
		s := c.t[graph.LayerNormDWStats].row(r, 0, 2)
		dy, x := load[T](w, 2, &c.t[graph.LayerNormDWDY], r, b.C0, b.C1), load[T](w, 3, &c.t[graph.LayerNormDWX], r, b.C0, b.C1)
		v.NormDW(dg, db, dy, x, s[0], s[1], ahead)
	}
	w.store(dg, &c.t[graph.LayerNormDWDGain], 0, b.C0, b.C1)
	if hasBias {
		w.store(db, &c.t[graph.LayerNormDWDBias], 0, b.C0, b.C1)
	}
}
