package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// Decay: how much the states of a gated delta rule keep and take in, see graph.Decay. There are two numbers of each head and
// token, so scalar arithmetic is enough; Fast does it in float64 like Reference.

// softplus returns log(1+exp(x)) and its derivative.
func softplus(x float64) (y, dy float64) {
	return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))), 1 / (1 + math.Exp(-x))
}

func decayRef(_ *Env, _ *graph.Attr, t []Tensor) { decayRows(t, 0, t[graph.DecayGates].Rows) }

func decayRows(t []Tensor, r0, r1 int) {
	gates, ba, rate, bias := &t[graph.DecayGates], &t[graph.DecayBA], &t[graph.DecayRate], &t[graph.DecayBias]
	n := rate.Cols
	for h := range n {
		keep, shift := -math.Exp(rate.At(0, h)), bias.At(0, h)
		for r := r0; r < r1; r++ {
			y, _ := softplus(ba.At(r, n+h) + shift)
			gates.Set(r, h, keep*y)
			gates.Set(r, n+h, 1/(1+math.Exp(-ba.At(r, h))))
		}
	}
}

func decayBwdRef(_ *Env, _ *graph.Attr, t []Tensor) { decayBwdRows(t, 0, t[graph.DecayBwdDBA].Rows) }

func decayBwdRows(t []Tensor, r0, r1 int) {
	dba, dgates, ba := &t[graph.DecayBwdDBA], &t[graph.DecayBwdDGates], &t[graph.DecayBwdBA]
	rate, bias := &t[graph.DecayBwdRate], &t[graph.DecayBwdBias]
	n := rate.Cols
	for h := range n {
		keep, shift := -math.Exp(rate.At(0, h)), bias.At(0, h)
		for r := r0; r < r1; r++ {
			_, slope := softplus(ba.At(r, n+h) + shift)
			_, taken := softplus(ba.At(r, h)) // the sigmoid
			dba.Set(r, n+h, dgates.At(r, h)*keep*slope)
			dba.Set(r, h, dgates.At(r, n+h)*taken*(1-taken))
		}
	}
}

func decay(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).blocks(t[graph.DecayGates].Rows, 1, 64, 1, func(c *call, _ *worker, b block) { decayRows(c.t[:], b.R0, b.R1) })
}

func decayBwd(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).blocks(t[graph.DecayBwdDBA].Rows, 1, 64, 1, func(c *call, _ *worker, b block) { decayBwdRows(c.t[:], b.R0, b.R1) })
}

func decayGradRef(_ *Env, a *graph.Attr, t []Tensor) {
	sum, dgates, gates := &t[graph.DecayGradDRate], &t[graph.DecayGradDGates], &t[graph.DecayGradGates]
	for h := range sum.Cols {
		var s float64
		for r := range gates.Rows {
			s += dgates.At(r, h) * gates.At(r, h)
		}
		sum.put(a.Acc, 0, h, s)
	}
}

func decayGrad(e *Env, a *graph.Attr, t []Tensor) {
	const band = 16
	e.begin(a, t).byColumns(t[graph.DecayGradGates].Rows, t[graph.DecayGradDRate].Cols, band, func(c *call, w *worker, b block) {
		sum := w.sum(0, &c.t[graph.DecayGradDRate], c.a.Acc, b)
		for r := b.R0; r < b.R1; r++ {
			d, g := c.t[graph.DecayGradDGates].row(r, b.C0, b.C1), c.t[graph.DecayGradGates].row(r, b.C0, b.C1)
			for h := range sum {
				sum[h] += float32(d[h] * g[h])
			}
		}
		w.store(sum, &c.t[graph.DecayGradDRate], 0, b.C0, b.C1)
	})
}
