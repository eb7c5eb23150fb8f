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
//	with Scale   dx[e] += p[e]*(g[e] - sum of p*g), g what graph.RouteBwd says
//
// With Attr.Sigmoid p is the sigmoid of x, and dx[e] also has the factor 1-p[e], and no sum of w*dw without Normed. Attr.Alpha
// multiplies w, so the sum is divided by it. A bias is added to p for the choice alone. With Attr.Groups the experts of all
// but the best groups are then as if they were -Inf.
//
// Whatever the logits are, NaN included, K different experts are chosen, so that nothing
// downstream has to check them. A NaN is among those chosen, so that it reaches the loss:
// otherwise weights that add up to 1, which are divided by a sum over the K experts only, would
// not show it.

// choose writes the len(ids) experts of greatest logit, in ascending order. Among equals it
// prefers the first. A NaN counts as greater than all numbers.
func choose(ids []int32, x []float32) {
	for k := range ids {
		best := -1
		for e := range x {
			if !chosen(ids[:k], e) && (best < 0 || x[e] > x[best] || x[e] != x[e] && x[best] == x[best]) {
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

// exclude makes the experts of all but the best groups -Inf. It uses ids and sums, of one number for each group.
func exclude(a *graph.Attr, x, sums []float32, ids []int32) {
	size := len(x) / a.Groups
	for g := range sums {
		first, second := minusInf, minusInf // NaN above all, as in choose
		for _, v := range x[g*size : (g+1)*size] {
			switch {
			case v > first || v != v:
				first, second = v, first
			case v > second:
				second = v
			}
		}
		sums[g] = first + second
	}
	choose(ids, sums)
	for e := range x {
		if !chosen(ids, e/size) {
			x[e] = minusInf
		}
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
	weights, experts, logits := &t[graph.RouteWeights], &t[graph.RouteExperts], &t[graph.RouteLogits]
	x, ids := make([]float32, logits.Cols), make([]int32, experts.Cols)
	for r := range logits.Rows {
		p := routeScores(a, logits, r)
		for e := range x {
			x[e] = float32(logits.At(r, e))
			if bias := &t[graph.RouteBias]; !bias.Absent() {
				x[e] = float32(p[e]) + float32(stateOf(bias, e))
			}
		}
		if a.Groups > 0 {
			exclude(a, x, make([]float32, a.Groups), make([]int32, a.Best))
		}
		choose(ids, x)
		all := 1.0
		if a.Normed {
			all = 0
			for _, e := range ids {
				all += p[e]
			}
		}
		all /= factor(a)
		for k, e := range ids {
			experts.Set(r, k, float64(e))
			weights.Set(r, k, p[e]/all)
		}
	}
}

// stateOf returns element c of a vector that is held as the sum of rows, see graph.StateRows.
func stateOf(t *Tensor, c int) (sum float64) {
	for r := range t.Rows {
		sum += t.At(r, c)
	}
	return sum
}

// factor returns what the weights are multiplied by.
func factor(a *graph.Attr) float64 {
	if a.Alpha == 0 {
		return 1
	}
	return a.Alpha
}

func routeScores(a *graph.Attr, x *Tensor, r int) []float64 {
	if !a.Sigmoid {
		return routeSoftmax(x, r)
	}
	p := make([]float64, x.Cols)
	for e := range p {
		p[e] = 1 / (1 + math.Exp(-x.At(r, e)))
	}
	return p
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
	dlogits, dweights, weights := &t[graph.RouteBwdDLogits], &t[graph.RouteBwdDWeights], &t[graph.RouteBwdWeights]
	experts, logits := &t[graph.RouteBwdExperts], &t[graph.RouteBwdLogits]
	for r := range logits.Rows {
		p := routeScores(a, logits, r)
		var sum float64
		for k := range weights.Cols {
			sum += weights.At(r, k) * dweights.At(r, k)
		}
		d := make([]float64, len(p))
		for e := range d {
			if !a.Normed && !a.Sigmoid {
				d[e] = -p[e] * sum
			}
		}
		if sum /= factor(a); a.Sigmoid && !a.Normed {
			sum = 0
		}
		for k := range weights.Cols {
			e := int(experts.At(r, k))
			if d[e] = weights.At(r, k) * (dweights.At(r, k) - sum); a.Sigmoid {
				d[e] *= 1 - p[e]
			}
		}
		if a.Scale > 0 {
			balanceRef(d, p, a.Scale*t[graph.RouteBwdScalars].At(0, graph.ScalarLossScale), experts, r-r%a.Seq, min(r-r%a.Seq+a.Seq, experts.Rows))
		}
		for e := range d {
			dlogits.Set(r, e, d[e])
		}
	}
}

// balanceRef adds to d the gradient of the term that evens out the use of experts in rows
// [lo, hi), where p holds the probabilities of one of these rows.
func balanceRef(d, p []float64, scale float64, experts *Tensor, lo, hi int) {
	g, mean := make([]float64, len(p)), 0.0
	for r := lo; r < hi; r++ {
		for k := range experts.Cols {
			g[int(experts.At(r, k))] += scale
		}
	}
	for e := range p {
		mean += p[e] * g[e]
	}
	for e := range p {
		d[e] += p[e] * (g[e] - mean)
	}
}

func route(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byRows(t[graph.RouteLogits].Rows, t[graph.RouteLogits].Cols, func(c *call, w *worker, b block) {
		weights, experts, logits := &c.t[graph.RouteWeights], &c.t[graph.RouteExperts], &c.t[graph.RouteLogits]
		for r := b.R0; r < b.R1; r++ {
			x, ids := w.load(0, logits, r, 0, logits.Cols), experts.ints(r)
			p, all := w.tmp(1, logits.Cols), float32(1)
			if c.a.Sigmoid {
				for e, x := range x {
					p[e] = sigmoid(x)
				}
			} else {
				all = w.v.Exp(p, x, x, 1, w.v.Max(x))
			}
			by := x
			if bias := &c.t[graph.RouteBias]; !bias.Absent() {
				by = w.tmp(2, logits.Cols)
				w.v.Scale(p, 1/all)
				all = 1
				clear(by)
				for r := range bias.Rows { // to the bias first, which is then what it was before it was divided
					w.v.Add(by, w.load(3, bias, r, 0, logits.Cols), 0)
				}
				w.v.Add(by, p, 0)
			}
			if c.a.Groups > 0 {
				by = append(w.tmp(4, logits.Cols)[:0], by...)
				exclude(c.a, by, w.tmp(5, c.a.Groups), w.groups(c.a.Best))
			}
			choose(ids, by)
			if c.a.Normed {
				all = 0
				for _, e := range ids {
					all += p[e]
				}
			}
			all /= float32(factor(c.a))
			for k, e := range ids {
				weights.row(r, k, k+1)[0] = p[e] / all
			}
		}
	})
}

func routeBwd(e *Env, a *graph.Attr, t []Tensor) {
	logits := &t[graph.RouteBwdLogits]
	c, together := e.begin(a, t), max(1, grain/logits.Cols)
	if a.Scale > 0 {
		together = a.Seq
		c.f[0] = float32(a.Scale) * t[graph.RouteBwdScalars].F32[graph.ScalarLossScale]
	}
	c.blocks(logits.Rows, logits.Cols, together, logits.Cols, func(c *call, w *worker, b block) {
		var use []float32 // gradient of the probabilities, by expert
		if c.a.Scale > 0 {
			use = w.tmp(2, c.cols)
			clear(use)
			for r := b.R0; r < b.R1; r++ {
				for _, e := range c.t[graph.RouteBwdExperts].ints(r) {
					use[e]++
				}
			}
			w.v.Scale(use, c.f[0])
		}
		for r := b.R0; r < b.R1; r++ {
			dx := w.dest(0, &c.t[graph.RouteBwdDLogits], r, 0, c.cols)
			c.routeBwdRow(w, dx, use, r)
			w.store(dx, &c.t[graph.RouteBwdDLogits], r, 0, c.cols)
		}
	})
}

// routeBwdRow computes the gradient of a row of logits.
func (c *call) routeBwdRow(w *worker, dx, use []float32, r int) {
	dw := c.t[graph.RouteBwdDWeights].row(r, 0, c.t[graph.RouteBwdDWeights].Cols)
	weights, ids := c.t[graph.RouteBwdWeights].row(r, 0, c.t[graph.RouteBwdWeights].Cols), c.t[graph.RouteBwdExperts].ints(r)
	var sum float32
	for k := range weights {
		sum += weights[k] * dw[k]
	}
	mean := sum / float32(factor(c.a))
	if c.a.Sigmoid {
		c.sigmoidBwdRow(w, dx, mean, r)
		return
	}
	if c.a.Normed && use == nil {
		clear(dx)
		for k, e := range ids {
			dx[e] = weights[k] * (dw[k] - mean)
		}
		return
	}
	p, x := w.tmp(3, c.cols), w.load(1, &c.t[graph.RouteBwdLogits], r, 0, c.cols)
	w.v.Scale(p, 1/w.v.Exp(p, x, x, 1, w.v.Max(x)))
	var used float32
	if use != nil {
		used = w.v.Dot(p, use)
	}
	others := -sum // factor of the experts not among the K
	if c.a.Normed {
		others = 0
	}
	for e := range dx {
		dx[e] = p[e] * others
	}
	for k, e := range ids {
		dx[e] = weights[k] * (dw[k] - mean)
	}
	for e := range use {
		dx[e] += p[e] * (use[e] - used)
	}
}

// sigmoidBwdRow is routeBwdRow for experts that are scored by themselves.
func (c *call) sigmoidBwdRow(w *worker, dx []float32, mean float32, r int) {
	dw, weights := c.t[graph.RouteBwdDWeights].row(r, 0, c.t[graph.RouteBwdDWeights].Cols), c.t[graph.RouteBwdWeights].row(r, 0, c.t[graph.RouteBwdWeights].Cols)
	x := w.load(1, &c.t[graph.RouteBwdLogits], r, 0, c.cols)
	if !c.a.Normed {
		mean = 0
	}
	clear(dx)
	for k, e := range c.t[graph.RouteBwdExperts].ints(r) {
		dx[e] = weights[k] * (dw[k] - mean) * sigmoid(-x[e])
	}
}

// sigmoid returns 1/(1+e^-x).
func sigmoid(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }
