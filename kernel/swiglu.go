package kernel

import "github.com/athanor-llm/athanor/graph"

// SwiGLU (Shazeer, 2002.05202): y = act(gate)*up, where gu = gate|up side by side and
// act is SiLU or, in GeGLU, GELU. SwiGLUBwd: dgate = dy*up*act'(gate), dup = dy*act(gate).
//
// With weights, a row is slots side by side, each gate|up. Each slot of y is multiplied by its
// weight w, and so are dgate and dup, and dw = sum of dy*act(gate)*up.
//
// With a limit, gates and ups are clamped to g and u, and y = g*sigmoid(alpha*g)*(u + 1)
// (gpt-oss). That is silu(alpha*g) * (u + 1)/alpha, so the same functions compute it: their
// inputs are prepared beforehand, and the chain rule is applied to the gradients that they
// return. A value beyond a bound has no gradient, one on it has, as in PyTorch.

// slotsRef returns the number of slots of a row, and the weight of each: 1 without weights.
func slotsRef(weights *Tensor) (n int, weight func(r, k int) float64) {
	if weights.Absent() {
		return 1, func(int, int) float64 { return 1 }
	}
	return weights.Cols, weights.At
}

// gluRef returns y = act(gate)*up and its derivatives, or those of the bounded form.
func gluRef(a *graph.Attr, gate, up float64) (y, dgate, dup float64) {
	if a.Limit == 0 {
		s, ds := a.Act.At(gate)
		return s * up, ds * up, s
	}
	g, u := min(gate, a.Limit), min(max(up, -a.Limit), a.Limit)
	s, ds := a.Act.At(a.Alpha * g)
	if y, dgate, dup = s/a.Alpha*(u+1), ds*(u+1), s/a.Alpha; g != gate {
		dgate = 0
	}
	if u != up {
		dup = 0
	}
	return y, dgate, dup
}

func swigluRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, gu := &t[graph.SwiGLUY], &t[graph.SwiGLUGateUp]
	n, weight := slotsRef(&t[graph.SwiGLUWeights])
	f := y.Cols / n
	for r := range y.Rows {
		for c := range y.Cols {
			k := c / f
			v, _, _ := gluRef(a, gu.At(r, k*f+c), gu.At(r, (k+1)*f+c))
			y.Set(r, c, v*weight(r, k))
		}
	}
}

func swigluBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dgu, dy, gu := &t[graph.SwiGLUBwdDGateUp], &t[graph.SwiGLUBwdDY], &t[graph.SwiGLUBwdGateUp]
	dweights := &t[graph.SwiGLUBwdDWeights]
	n, weight := slotsRef(&t[graph.SwiGLUBwdWeights])
	f := dy.Cols / n
	for r := range dy.Rows {
		for k := range n {
			var sum float64
			for c := k * f; c < (k+1)*f; c++ {
				v, dgate, dup := gluRef(a, gu.At(r, k*f+c), gu.At(r, (k+1)*f+c))
				d := dy.At(r, c)
				sum += d * v
				d *= weight(r, k)
				dgu.Set(r, k*f+c, d*dgate)
				dgu.Set(r, (k+1)*f+c, d*dup)
			}
			if !dweights.Absent() {
				dweights.put(a.Acc, r, k, sum)
			}
		}
	}
}

func swiglu(e *Env, a *graph.Attr, t []Tensor) {
	if !t[graph.SwiGLUWeights].Absent() {
		e.begin(a, t).byRows(t[graph.SwiGLUY].Rows, t[graph.SwiGLUY].Cols, weightedBody)
		return
	}
	e.begin(a, t).bypassCaches().inBuffers(2).byRows(t[graph.SwiGLUY].Rows, t[graph.SwiGLUY].Cols, func(c *call, w *worker, b block) {
		y, gu, f := &c.t[graph.SwiGLUY], &c.t[graph.SwiGLUGateUp], c.cols
		for r := b.R0; r < b.R1; r++ {
			out := w.dest(0, y, r, b.C0, b.C1)
			w.storesFor(y).GLU[c.a.Act](out, w.load(1, gu, r, b.C0, b.C1), w.load(2, gu, r, f+b.C0, f+b.C1))
			w.store(out, y, r, b.C0, b.C1)
		}
	})
}

// weightedBody computes whole rows slot by slot, buffered columns at a time.
func weightedBody(c *call, w *worker, b block) {
	y, gu, weights := &c.t[graph.SwiGLUY], &c.t[graph.SwiGLUGateUp], &c.t[graph.SwiGLUWeights]
	f := c.cols / weights.Cols
	for r := b.R0; r < b.R1; r++ {
		for k, weight := range weights.row(r, 0, weights.Cols) {
			for lo := 0; lo < f; lo += buffered {
				n := min(buffered, f-lo)
				gate := 2*k*f + lo
				out := w.dest(0, y, r, k*f+lo, k*f+lo+n)
				g, u := c.bounded(w, w.load(1, gu, r, gate, gate+n), w.load(2, gu, r, gate+f, gate+f+n))
				w.v.GLU[c.a.Act](out, g, u)
				w.v.Scale(out, weight)
				w.store(out, y, r, k*f+lo, k*f+lo+n)
			}
		}
	}
}

// bounded returns gates and ups or, with a limit, buffers with the inputs from which GLU computes
// the bounded form.
func (c *call) bounded(w *worker, gate, up []float32) (g, u []float32) {
	if c.a.Limit == 0 {
		return gate, up
	}
	limit, alpha, beta := float32(c.a.Limit), float32(c.a.Alpha), float32(1/c.a.Alpha)
	g, u = w.tmp(5, len(gate)), w.tmp(6, len(up))
	for i, x := range gate {
		g[i] = alpha * min(x, limit)
	}
	for i, x := range up {
		u[i] = beta * (min(max(x, -limit), limit) + 1)
	}
	return g, u
}

// unbound turns the gradients of what bounded returned into those of gates and ups.
func (c *call) unbound(dgate, dup, gate, up []float32) {
	if c.a.Limit == 0 {
		return
	}
	limit, alpha, beta := float32(c.a.Limit), float32(c.a.Alpha), float32(1/c.a.Alpha)
	for i, x := range gate {
		if dgate[i] *= alpha; x > limit {
			dgate[i] = 0
		}
	}
	for i, x := range up {
		if dup[i] *= beta; x > limit || x < -limit {
			dup[i] = 0
		}
	}
}

func swigluBwd(e *Env, a *graph.Attr, t []Tensor) {
	if !t[graph.SwiGLUBwdWeights].Absent() {
		e.begin(a, t).byRows(t[graph.SwiGLUBwdDY].Rows, t[graph.SwiGLUBwdDY].Cols, weightedBwdBody)
		return
	}
	e.begin(a, t).bypassCaches().inBuffers(3).byRows(t[graph.SwiGLUBwdDY].Rows, t[graph.SwiGLUBwdDY].Cols, func(c *call, w *worker, b block) {
		dgu, dy, gu, f := &c.t[graph.SwiGLUBwdDGateUp], &c.t[graph.SwiGLUBwdDY], &c.t[graph.SwiGLUBwdGateUp], c.cols
		for r := b.R0; r < b.R1; r++ {
			lo, hi := b.C0, b.C1
			dgate, dup := w.dest(0, dgu, r, lo, hi), w.dest(1, dgu, r, f+lo, f+hi)
			w.storesFor(dgu).GLUBwd[c.a.Act](dgate, dup, w.load(2, dy, r, lo, hi), w.load(3, gu, r, lo, hi), w.load(4, gu, r, f+lo, f+hi))
			w.store(dgate, dgu, r, lo, hi)
			w.store(dup, dgu, r, f+lo, f+hi)
		}
	})
}

func weightedBwdBody(c *call, w *worker, b block) {
	weights, dweights := &c.t[graph.SwiGLUBwdWeights], &c.t[graph.SwiGLUBwdDWeights]
	f := c.cols / weights.Cols
	for r := b.R0; r < b.R1; r++ {
		for k, weight := range weights.row(r, 0, weights.Cols) {
			var sum float32
			for lo := 0; lo < f; lo += buffered {
				sum += c.weightedBwd(w, r, k*f+lo, 2*k*f+lo, min(buffered, f-lo), f, weight)
			}
			if !dweights.Absent() {
				if c.a.Acc {
					sum += dweights.row(r, k, k+1)[0]
				}
				dweights.row(r, k, k+1)[0] = sum
			}
		}
	}
}

// weightedBwd computes n columns of a slot, from column at of dy and column gate of gu, and
// returns their part of the weight's gradient.
func (c *call) weightedBwd(w *worker, r, at, gate, n, f int, weight float32) float32 {
	dgu, dy, gu := &c.t[graph.SwiGLUBwdDGateUp], &c.t[graph.SwiGLUBwdDY], &c.t[graph.SwiGLUBwdGateUp]
	dgate, dup := w.dest(0, dgu, r, gate, gate+n), w.dest(1, dgu, r, gate+f, gate+f+n)
	x, up := w.load(3, gu, r, gate, gate+n), w.load(4, gu, r, gate+f, gate+f+n)
	g, u := c.bounded(w, x, up)
	w.v.GLUBwd[c.a.Act](dgate, dup, w.load(2, dy, r, at, at+n), g, u)
	sum := w.v.Dot(dup, u)
	c.unbound(dgate, dup, x, up)
	w.v.Scale(dgate, weight)
	w.v.Scale(dup, weight)
	w.store(dgate, dgu, r, gate, gate+n)
	w.store(dup, dgu, r, gate+f, gate+f+n)
	return sum
}
