package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// SinkGrad: a sink is a score whose value is 0. So in the derivative of scores, p*(dp-delta),
// dp is 0, and nothing scales it: dsink = -exp(sink-lse)*delta, in one chain of float32
// additions per head over the tokens, ascending.

func sinkGradRef(_ *Env, a *graph.Attr, t []Tensor) {
	dsinks, delta, lse, sinks := &t[graph.SinkGradDSinks], &t[graph.SinkGradDelta], &t[graph.SinkGradLSE], &t[graph.SinkGradSinks]
	for h := range dsinks.Cols {
		var s float64
		for r := range delta.Rows {
			s -= math.Exp(sinks.At(0, h)-lse.At(r, h)) * delta.At(r, h)
		}
		dsinks.put(a.Acc, 0, h, s)
	}
}

func sinkGrad(e *Env, a *graph.Attr, t []Tensor) {
	const band = 16 // heads worth giving to a worker: exponentials cost more than loads
	e.begin(a, t).byColumns(t[graph.SinkGradDelta].Rows, t[graph.SinkGradDelta].Cols, band, sinkGradColumns)
}

func sinkGradColumns(c *call, w *worker, b block) {
	delta, lse, n := &c.t[graph.SinkGradDelta], &c.t[graph.SinkGradLSE], b.C1-b.C0
	sum, sinks := w.sum(0, &c.t[graph.SinkGradDSinks], c.a.Acc, b), w.load(1, &c.t[graph.SinkGradSinks], 0, b.C0, b.C1)
	weights, terms, zeros := w.tmp(2, n), w.tmp(3, n), w.tmp(4, n)
	clear(zeros)
	for r := b.R0; r < b.R1; r++ {
		copy(weights, lse.row(r, b.C0, b.C1))
		copy(terms, delta.row(r, b.C0, b.C1))
		w.v.ColExpBwd(sinks, zeros, weights, terms, -1)
		w.v.Add(sum, terms, 0)
	}
	w.store(sum, &c.t[graph.SinkGradDSinks], 0, b.C0, b.C1)
}
