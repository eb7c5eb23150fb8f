package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// The global gradient norm, in float64. NormPart sums the squares of each piece of NormPiece
// elements. NormAll adds the pieces in order and derives the factor that clips the norm to
// Clip, or 0, which makes AdamW skip the update.

func normPartRef(_ *Env, _ *graph.Attr, t []Tensor) {
	part, g := &t[graph.NormPartPart], &t[graph.NormPartGrad]
	for k := range part.Cols {
		var s float64
		for i := k * graph.NormPiece; i < min((k+1)*graph.NormPiece, g.Rows*g.Cols); i++ {
			v := g.At(i/g.Cols, i%g.Cols)
			s += v * v
		}
		part.Set(0, k, s)
	}
}

func normPart(e *Env, a *graph.Attr, t []Tensor) {
	if !t[graph.NormPartGrad].flat() { // pieces span rows: rare, and not worth a fast path
		normPartRef(e, a, t)
		return
	}
	c := e.begin(a, t)
	c.n[0] = t[graph.NormPartGrad].Rows * t[graph.NormPartGrad].Cols
	c.tasks(t[graph.NormPartPart].Cols, func(c *call, w *worker, k int) {
		g := c.t[graph.NormPartGrad]
		g.Stride = 0
		lo, hi := k*graph.NormPiece, min((k+1)*graph.NormPiece, c.n[0])
		c.t[graph.NormPartPart].F64[k] = w.v.SumSq64(w.load(0, &g, 0, lo, max(lo, hi)))
	})
}

func normAll(_ *Env, a *graph.Attr, t []Tensor) {
	clip, part, bound := &t[graph.NormAllClip], &t[graph.NormAllPart], t[graph.NormAllScalars].F32[graph.ScalarBound]
	var s float64
	for k := range part.Cols {
		s += part.At(0, k)
	}
	norm := math.Sqrt(s)
	factor := 1.0
	if a.Clip > 0 {
		factor = min(1, a.Clip/(norm+1e-6))
		if !(float32(norm) <= bound) { // also if it is NaN
			factor = 0
		}
	}
	clip.Set(0, 0, factor)
	clip.Set(0, 1, norm)
}

// squares returns the sum of squares of a tensor without gaps, as NormPart and NormAll add them.
func (e *Env) squares(a *graph.Attr, x Tensor) (sum float64) {
	n := graph.NormPieces(int64(x.Rows) * int64(x.Cols))
	if len(e.pieces) < n {
		e.pieces = make([]float64, n)
	}
	normPart(e, a, []Tensor{{DType: graph.F64, Rows: 1, Cols: n, Stride: n, F64: e.pieces}, x})
	for _, v := range e.pieces[:n] {
		sum += v
	}
	return sum
}
