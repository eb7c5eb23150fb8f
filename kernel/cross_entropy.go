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
// With parts the row is one of several parts of a row, and the maximum and the sum are known: m is the logarithm of the sum, which is 1
// then. LossPart finds what the others need to know of a part, in the first two passes.
//
// With Score the loss is minus the target's logit, and the gradient minus the scale there: what Preference adds up are rewards.
//
// With values the loss is the square of what the row's only logit is off its value, and the gradient that square's times the scale.
//
// LossSum adds the rows' losses in float64, in ascending order.

func crossEntropyRef(_ *Env, a *graph.Attr, t []Tensor) {
	if oneLogit(a, t) {
		return
	}
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
		own := target - a.First
		switch parts := optional(t, graph.CrossEntropyParts); {
		case parts != nil:
			whole, mine := joinRef(parts, r)
			loss.Set(r, 0, whole-mine)
			m, sum = whole, 1
		case target >= 0:
			loss.Set(r, 0, math.Log(sum)+m-x.At(r, target))
		}
		if target < 0 {
			loss.Set(r, 0, 0)
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
			if c == own && target >= 0 {
				p--
			}
			if target < 0 {
				p = 0
			}
			x.Set(r, c, p*scale*slope)
		}
	}
}

// joinRef returns the logarithm of the sum of a row's exponentials, and the target's logit, of which each pair of columns has a part.
func joinRef(parts *Tensor, r int) (whole, mine float64) {
	m, sum := math.Inf(-1), 0.0
	for k := 0; k < parts.Cols; k += 2 {
		m, mine = max(m, parts.At(r, k)), mine+parts.At(r, k+1)
	}
	for k := 0; k < parts.Cols; k += 2 {
		sum += math.Exp(parts.At(r, k) - m)
	}
	return math.Log(sum) + m, mine
}

// join is joinRef, for rows of float32.
func join(parts []float32) (whole, mine float64) {
	m, sum := math.Inf(-1), 0.0
	for k := 0; k < len(parts); k += 2 {
		m, mine = max(m, float64(parts[k])), mine+float64(parts[k+1])
	}
	for k := 0; k < len(parts); k += 2 {
		sum += math.Exp(float64(parts[k]) - m)
	}
	return math.Log(sum) + m, mine
}

func lossPartRef(_ *Env, a *graph.Attr, t []Tensor) {
	parts, x, targets := &t[graph.LossPartParts], &t[graph.LossPartLogits], &t[graph.LossPartTargets]
	for r := range x.Rows {
		m, sum, mine := math.Inf(-1), 0.0, 0.0
		for c := range x.Cols {
			m = max(m, x.At(r, c))
		}
		for c := range x.Cols {
			sum += math.Exp(x.At(r, c) - m)
			if c == int(targets.I32[r*targets.Stride])-a.First {
				mine = x.At(r, c)
			}
		}
		for c := range parts.Cols {
			parts.Set(r, c, 0)
		}
		k := 2 * (a.First / x.Cols) % parts.Cols
		parts.Set(r, k, math.Log(sum)+m)
		parts.Set(r, k+1, mine)
	}
}

func lossPart(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	logits := &t[graph.LossPartLogits]
	c.blocks(logits.Rows, logits.Cols, max(8, grain/max(logits.Cols, 1)), logits.Cols, func(c *call, w *worker, b block) {
		logits, targets := &c.t[graph.LossPartLogits], &c.t[graph.LossPartTargets]
		for r := b.R0; r < b.R1; r++ {
			x, next, m := w.logits(c, logits, r, b.R1)
			out := c.t[graph.LossPartParts].row(r, 0, c.t[graph.LossPartParts].Cols)
			clear(out)
			k := 2 * (c.a.First / c.cols) % len(out)
			out[k] = float32(math.Log(float64(w.v.SumExp(x, next, 1, m))) + float64(m))
			if at := int(targets.I32[r*targets.Stride]) - c.a.First; at >= 0 && at < c.cols {
				out[k+1] = x[at]
			}
		}
	})
}

// logits returns a row of logits, which row is worth being prefetched meanwhile, and the maximum.
func (w *worker) logits(c *call, t *Tensor, r, end int) (x, next []float32, m float32) {
	n := c.cols
	if t.DType == graph.BF16 {
		x = w.tmp(0, n)
		m = w.v.Half.MaxTo(x, t.row16(r, 0, n))
		return x, x, m
	}
	x = t.row(r, 0, n)
	next = x
	if r+1 < end {
		next = t.row(r+1, 0, n)
	}
	return x, next, w.v.Max(x)
}

// oneLogit computes the losses of rows with hardly more than one logit, and reports whether there are such.
func oneLogit(a *graph.Attr, t []Tensor) bool {
	switch values := optional(t, graph.CrossEntropyValues); {
	case values != nil:
		regress(a, t, values)
	case a.Score:
		scoreRows(a, t)
	default:
		return false
	}
	return true
}

// regress is cross-entropy with values, by one goroutine, as scoreRows.
func regress(a *graph.Attr, t []Tensor, values *Tensor) {
	loss, x, targets := &t[graph.CrossEntropyLoss], &t[graph.CrossEntropyLogits], &t[graph.CrossEntropyTargets]
	scale := t[graph.CrossEntropyScalars].At(0, graph.ScalarLossScale)
	for r := range x.Rows {
		off := 0.0
		if targets.I32[r*targets.Stride] >= 0 {
			off = x.At(r, 0) - values.At(r, 0)
		}
		loss.Set(r, 0, off*off)
		if a.Grad {
			x.Set(r, 0, 2*off*scale)
		}
	}
}

// scoreRows is cross-entropy with Score. Rows have hardly more than one logit, so one goroutine is enough, and Reference and Fast are the same.
func scoreRows(a *graph.Attr, t []Tensor) {
	loss, x, targets, weights := &t[graph.CrossEntropyLoss], &t[graph.CrossEntropyLogits], &t[graph.CrossEntropyTargets], &t[graph.CrossEntropyWeights]
	for r := range x.Rows {
		target := int(targets.I32[r*targets.Stride])
		loss.Set(r, 0, 0)
		if target >= 0 {
			loss.Set(r, 0, -x.At(r, target))
		}
		if !a.Grad {
			continue
		}
		scale := t[graph.CrossEntropyScalars].At(0, graph.ScalarLossScale)
		if !weights.Absent() {
			scale *= weights.At(r, 0)
		}
		for c := range x.Cols {
			x.Set(r, c, 0)
		}
		if target >= 0 {
			x.Set(r, target, -scale)
		}
	}
}

func crossEntropy(e *Env, a *graph.Attr, t []Tensor) {
	if oneLogit(a, t) {
		return
	}
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
			x, next, m := w.logits(c, logits, r, b.R1)
			target -= c.a.First
			here := target >= 0 && target < n
			var at float32
			if here {
				at = x[target]
			}
			parts := &c.t[graph.CrossEntropyParts]
			if !parts.Absent() {
				whole, mine := join(parts.row(r, 0, parts.Cols))
				out[0], m = float32(whole-mine), float32(whole)
			}
			if !c.a.Grad {
				if parts.Absent() {
					out[0] = nll(w.v.SumExp(x, next, 1, m), m, at)
				}
				continue
			}
			kept := w.keepCapped(c.a, x)
			sum := w.v.Exp(x, x, next, 1, m)
			if parts.Absent() {
				out[0] = nll(sum, m, at)
			} else {
				sum = 1
			}
			one := c.f[0]
			if weights := &c.t[graph.CrossEntropyWeights]; !weights.Absent() {
				one *= weights.row(r, 0, 1)[0]
			}
			scale := one / sum
			var corrected float32
			if here {
				corrected = float32(x[target]*scale) - one
			}
			if c.a.Limit > 0 {
				w.throughCap(c.a, x, kept, 1/c.a.Limit, float64(scale))
				corrected, scale = corrected*float32(slopeOf(c.a, float64(at))), 1
			}
			if logits.DType == graph.BF16 {
				w.v.Half.ScaleTo(logits.row16(r, 0, n), x, scale)
				if here {
					logits.row16(r, target, target+1)[0] = float16.ToBF16(corrected)
				}
				continue
			}
			w.v.Scale(x, scale)
			if here {
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
