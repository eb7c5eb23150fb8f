package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// Route: the K experts of each token and their weights; see graph.Route. With p the softmax of
// a token's logits x, and S its K experts:
//
//	weight  w[e] = p[e], or p[e] / sum of p over S with Attr.Normed
//	RouteBwd     dx[e] = p[e]*([e in S]*dw[e] - sum of w*dw)
//	with Normed  dx[e] = w[e]*(dw[e] - sum of w*dw) for e in S, else 0
//
// The choice is the same whatever the logits are, NaN included: K different experts, so that
// nothing after it has to check them. A NaN is in the weights then, and reaches the loss.

// choose writes the len(ids) experts of greatest logit, in ascending order. Of equal ones it
// prefers the first. A NaN is not chosen while there are numbers.
func choose(ids []int32, x []float32) {
	for k := range ids {
		best := -1
		for e := range x {
			if !chosen(ids[:k], e) && (best < 0 || x[e] > x[best] || x[best] != x[best] && x[e] == x[e]) {
				best = e
			}
		}
		at := k
		for ; at > 0 && ids[at-1] > int32(best); at-- {
			ids[at] = ids[at-1]
		}
		ids[at] = int32(best)
	}
}

func chosen(ids []int32, e int) bool {
	for _, id := range ids {
		if int(id) == e {
			return true
		}
	}
	return false
}

func routeRef(_ *Env, a *graph.Attr, t []Tensor) {
	weights, experts, logits := &t[0], &t[1], &t[2]
	x, ids := make([]float32, logits.Cols), make([]int32, experts.Cols)
	for r := range logits.Rows {
		p := routeSoftmax(logits, r)
		for e := range x {
			x[e] = float32(logits.At(r, e))
		}
		choose(ids, x)
		all := 1.0
		if a.Normed {
			all = 0
			for _, e := range ids {
				all += p[e]
			}
		}
		for k, e := range ids {
			experts.Set(r, k, float64(e))
			weights.Set(r, k, p[e]/all)
		}
	}
}

func routeSoftmax(x *Tensor, r int) []float64 {
	p, most, sum := make([]float64, x.Cols), math.Inf(-1), 0.0
	for e := range p {
		most = max(most, x.At(r, e))
	}
	for e := range p {
		p[e] = math.Exp(x.At(r, e) - most)
		sum += p[e]
	}
	for e := range p {
		p[e] /= sum
	}
	return p
}

func routeBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dlogits, dweights, weights, experts, logits := &t[0], &t[1], &t[2], &t[3], &t[4]
	for r := range logits.Rows {
		p := routeSoftmax(logits, r)
		var sum float64
		for k := range weights.Cols {
			sum += weights.At(r, k) * dweights.At(r, k)
		}
		for e := range p {
			d := -p[e] * sum
			if a.Normed {
				d = 0
			}
			dlogits.Set(r, e, d)
		}
		for k := range weights.Cols {
			dlogits.Set(r, int(experts.At(r, k)), weights.At(r, k)*(dweights.At(r, k)-sum))
		}
	}
}

func route(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byRows(t[2].Rows, t[2].Cols, func(c *call, w *worker, b block) {
		weights, experts, logits := &c.t[0], &c.t[1], &c.t[2]
		for r := b.R0; r < b.R1; r++ {
			x, ids := w.load(0, logits, r, 0, logits.Cols), experts.ints(r)
			choose(ids, x)
			p := w.tmp(1, logits.Cols)
			all := w.v.Exp(p, x, x, 1, w.v.Max(x))
			if c.a.Normed {
				all = 0
				for _, e := range ids {
					all += p[e]
				}
			}
			for k, e := range ids {
				weights.row(r, k, k+1)[0] = p[e] / all
			}
		}
	})
}

func routeBwd(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byRows(t[4].Rows, t[4].Cols, func(c *call, w *worker, b block) {
		dlogits, dweights, weights, experts, logits := &c.t[0], &c.t[1], &c.t[2], &c.t[3], &c.t[4]
		for r := b.R0; r < b.R1; r++ {
			ids, wt, dw := experts.ints(r), weights.row(r, 0, weights.Cols), dweights.row(r, 0, weights.Cols)
			var sum float32
			for k := range wt {
				sum += wt[k] * dw[k]
			}
			dx := w.dest(0, dlogits, r, 0, logits.Cols)
			if c.a.Normed {
				clear(dx)
				for k, e := range ids {
					dx[e] = wt[k] * (dw[k] - sum)
				}
			} else {
				x := w.load(1, logits, r, 0, logits.Cols)
				all := w.v.Exp(dx, x, x, 1, w.v.Max(x))
				w.v.Scale(dx, -sum/all)
				for k, e := range ids { // where the weight is p
					dx[e] = wt[k] * (dw[k] - sum)
				}
			}
			w.store(dx, dlogits, r, 0, logits.Cols)
		}
	})
}
