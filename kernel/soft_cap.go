package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// Soft caps (Gemma 2, 2408.00118): numbers x become L*tanh(x/L), which is about x for small ones and never more than L.
//
// In attention a tile of products q.k becomes tanh(Scale/L * q.k), and what follows takes L for the scale: nothing else
// changes. The backward pass keeps the tile, whose derivative follows from its values. Numbers that are not capped cost
// nothing.
//
// SoftCap is of the logits. Cross-entropy, which reads them capped and overwrites them with a gradient, multiplies that by
// the derivative.

// capped returns a score as it enters the softmax.
func capped(a *graph.Attr, s float64) float64 {
	if a.Limit > 0 {
		return a.Limit * math.Tanh(s/a.Limit)
	}
	return s
}

// slopeOf returns the derivative of what capped returned.
func slopeOf(a *graph.Attr, capped float64) float64 {
	if a.Limit > 0 {
		t := capped / a.Limit
		return 1 - t*t
	}
	return 1
}

// capScores caps the scores of a tile, and returns what they are then still to be multiplied by.
func (w *worker) capScores(a *graph.Attr, tile []float32) (scale float32) {
	if a.Limit > 0 {
		w.v.Tanh(tile, tile, float32(a.Scale/a.Limit))
		return float32(a.Limit)
	}
	return float32(a.Scale)
}

// keepCapped returns a copy of a tile after capScores, which is empty where scores are not capped.
func (w *worker) keepCapped(a *graph.Attr, tile []float32) []float32 {
	if a.Limit <= 0 {
		return nil
	}
	kept := w.tmp(14, len(tile))
	copy(kept, tile)
	return kept
}

// throughCap multiplies the derivative with respect to what capScores made by that of the cap, and by a factor. kept is of
// keepCapped; scale times it are hyperbolic tangents.
func (w *worker) throughCap(a *graph.Attr, dx, kept []float32, scale, by float64) {
	if a.Limit > 0 {
		w.v.TanhBwd(dx, kept, float32(scale), float32(by))
	}
}

func softCapRef(_ *Env, a *graph.Attr, t []Tensor) {
	y := &t[graph.SoftCapY]
	for r := range y.Rows {
		for c := range y.Cols {
			y.Set(r, c, capped(a, y.At(r, c)))
		}
	}
}

func softCap(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byElements(1, func(c *call, w *worker, b block) {
		for r := b.R0; r < b.R1; r++ {
			y := w.load(0, &c.t[graph.SoftCapY], r, b.C0, b.C1)
			w.v.Tanh(y, y, float32(1/c.a.Limit))
			w.v.Scale(y, float32(c.a.Limit))
			w.store(y, &c.t[graph.SoftCapY], r, b.C0, b.C1)
		}
	})
}
