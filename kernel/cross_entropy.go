package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/float16"
)

// CrossEntropy: loss = log(sum(exp(x))) - x[target] per row, 0 where the
// target is negative. With Grad the logits become (softmax - onehot)*s, where s is the loss
// scale (times the row's weight, if there are weights), or 0 where the target is negative.
// With Limit the logits have been capped, and the gradient is that of the numbers before:
// it is multiplied by 1 - (x/Limit)^2.
//
// Three passes over a row, which stays in the L2 cache (50257 f32 are 200 KB): the
// maximum m; exp(x-m) and its sum, in place with Grad; the multiplication by s/sum.
// The second pass prefetches the next row, so that its first pass does not wait for
// memory. Exponents are never positive, so large logits cannot overflow, and -Inf
// has probability 0. A row with a NaN, +Inf or nothing above -Inf has the loss NaN,
// so that the run notices.
//
// LossSum adds the rows' losses in float64, in ascending order.

func crossEntropyRef(_ *Env, a *graph.Attr, t []Tensor) {
	loss, x, targets := &t[graph.CrossEntropyLoss], &t[graph.CrossEntropyLogits], &t[graph.CrossEntropyTargets]
	scalars := &t[graph.CrossEntropyScalars]
	for r := range x.Rows {
		target := int(targets.I32[r*targets.Stride])
		m := math.Inf(-1)
		for c := range x.Cols {
			m = max(m, x.At(r, c))
		}
		var sum float64
		for c := range x.Cols {
			sum += math.Exp(x.At(r, c) - m)
		}
		if target < 0 {
			loss.Set(r, 0, 0)
		} else {
			loss.Set(r, 0, math.Log(sum)+m-x.At(r, target))
		}
		if !a.Grad {
			continue
		}
		scale := scalars.At(0, graph.ScalarLossScale)
		if weights := &t[graph.CrossEntropyWeights]; !weights.Absent() {
			scale *= weights.At(r, 0)
		}
		for c := range x.Cols {
			slope := slopeOf(a, x.At(r, c))
			p := math.Exp(x.At(r, c)-m) / sum
			if c == target {
				p--
			}
			if target < 0 {
				p = 0
			}
			x.Set(r, c, p*scale*slope)
		}
	}
}

func crossEntropy(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	c.f[0] = t[graph.CrossEntropyScalars].F32[graph.ScalarLossScale]
	logits := &t[graph.CrossEntropyLogits]
	c.blocks(logits.Rows, logits.Cols, max(8, grain/max(logits.Cols, 1)), logits.Cols, func(c *call, w *worker, b block) {
		loss, logits, targets := &c.t[graph.CrossEntropyLoss], &c.t[graph.CrossEntropyLogits], &c.t[graph.CrossEntropyTargets]
		n := c.cols
		for r := b.R0; r < b.R1; r++ {
			target := int(targets.I32[r*targets.Stride])
			out := loss.row(r, 0, 1)
			if target < 0 {
				out[0] = 0
				if c.a.Grad {
					x := w.dest(0, logits, r, 0, n)
					clear(x)
					w.store(x, logits, r, 0, n)
				}
				continue
			}
			var x, next []float32
			var m float32
			if logits.DType == graph.BF16 {
				x = w.tmp(0, n)
				m, next = w.v.Half.MaxTo(x, logits.row16(r, 0, n)), x
			} else {
				x = logits.row(r, 0, n)
				m, next = w.v.Max(x), x
				if r+1 < b.R1 {
					next = logits.row(r+1, 0, n)
				}
			}
			at := x[target]
			if !c.a.Grad {
				out[0] = nll(w.v.SumExp(x, next, 1, m), m, at)
				continue
			}
			kept := w.keepCapped(c.a, x)
			sum := w.v.Exp(x, x, next, 1, m)
			out[0] = nll(sum, m, at)
			one := c.f[0]
			if weights := &c.t[graph.CrossEntropyWeights]; !weights.Absent() {
				one *= weights.row(r, 0, 1)[0]
			}
			scale := one / sum
			corrected := float32(x[target]*scale) - one
			if c.a.Limit > 0 {
				w.throughCap(c.a, x, kept, 1/c.a.Limit, float64(scale))
				corrected, scale = corrected*float32(slopeOf(c.a, float64(at))), 1
			}
			if logits.DType == graph.BF16 {
				w.v.Half.ScaleTo(logits.row16(r, 0, n), x, scale)
				logits.row16(r, target, target+1)[0] = float16.ToBF16(corrected)
			} else {
				w.v.Scale(x, scale)
				x[target] = corrected
			}
		}
	})
}

// nll returns -log(exp(x-m)/sum).
func nll(sum, m, x float32) float32 {
	return float32(math.Log(float64(sum)) + (float64(m) - float64(x)))
}

func lossSum(_ *Env, a *graph.Attr, t []Tensor) {
	total, loss := &t[graph.LossSumTotal], &t[graph.LossSumLoss]
	var s float64
	if a.Acc {
		s = total.At(0, 0)
	}
	for r := range loss.Rows {
		s += loss.At(r, 0)
	}
	total.Set(0, 0, s)
}
