package kernel

import "github.com/athanor-llm/athanor/graph"

// SwiGLU (Shazeer, 2002.05202): y = act(gate)*up, where gu = gate|up side by side and
// act is SiLU or, in GeGLU, GELU. SwiGLUBwd: dgate = dy*up*act'(gate), dup = dy*act(gate).
//
// With weights, rows are slots side by side, each gate|up, and y is multiplied by its slot's
// weight w: then dgate and dup are, too, and dw = sum of dy*act(gate)*up.

// slotsRef returns the number of slots of a row, and the weight of each: 1 without weights.
func slotsRef(weights *Tensor) (n int, weight func(r, k int) float64) {
	if weights.Absent() {
		return 1, func(int, int) float64 { return 1 }
	}
	return weights.Cols, weights.At
}

func swigluRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, gu := &t[0], &t[1]
	n, weight := slotsRef(&t[2])
	f := y.Cols / n
	for r := range y.Rows {
		for c := range y.Cols {
			k := c / f
			s, _ := activation(a.Act, gu.At(r, k*f+c))
			y.Set(r, c, s*gu.At(r, (k+1)*f+c)*weight(r, k))
		}
	}
}

func swigluBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dgu, dy, gu, dweights := &t[0], &t[1], &t[2], &t[4]
	n, weight := slotsRef(&t[3])
	f := dy.Cols / n
	for r := range dy.Rows {
		for k := range n {
			var sum float64
			for c := k * f; c < (k+1)*f; c++ {
				s, ds := activation(a.Act, gu.At(r, k*f+c))
				d, up := dy.At(r, c), gu.At(r, (k+1)*f+c)
				sum += d * s * up
				d *= weight(r, k)
				dgu.Set(r, k*f+c, d*up*ds)
				dgu.Set(r, (k+1)*f+c, d*s)
			}
			if !dweights.Absent() {
				dweights.Set(r, k, sum)
			}
		}
	}
}

func swiglu(e *Env, a *graph.Attr, t []Tensor) {
	if !t[2].Absent() {
		e.begin(a, t).byRows(t[0].Rows, t[0].Cols, weightedBody)
		return
	}
	e.begin(a, t).past().inBuffers(2).byRows(t[0].Rows, t[0].Cols, func(c *call, w *worker, b block) {
		y, gu, f := &c.t[0], &c.t[1], c.cols
		for r := b.R0; r < b.R1; r++ {
			out := w.dest(0, y, r, b.C0, b.C1)
			w.to(y).GLU[c.a.Act](out, w.load(1, gu, r, b.C0, b.C1), w.load(2, gu, r, f+b.C0, f+b.C1))
			w.store(out, y, r, b.C0, b.C1)
		}
	})
}

// weightedBody computes whole rows, a slot at a time, of that buffered columns at a time.
func weightedBody(c *call, w *worker, b block) {
	y, gu, weights := &c.t[0], &c.t[1], &c.t[2]
	f := c.cols / weights.Cols
	for r := b.R0; r < b.R1; r++ {
		for k, weight := range weights.row(r, 0, weights.Cols) {
			for lo := 0; lo < f; lo += buffered {
				n := min(buffered, f-lo)
				gate := 2*k*f + lo
				out := w.dest(0, y, r, k*f+lo, k*f+lo+n)
				w.v.GLU[c.a.Act](out, w.load(1, gu, r, gate, gate+n), w.load(2, gu, r, gate+f, gate+f+n))
				w.v.Scale(out, weight)
				w.store(out, y, r, k*f+lo, k*f+lo+n)
			}
		}
	}
}

func swigluBwd(e *Env, a *graph.Attr, t []Tensor) {
	if !t[3].Absent() {
		e.begin(a, t).byRows(t[1].Rows, t[1].Cols, weightedBwdBody)
		return
	}
	e.begin(a, t).past().inBuffers(3).byRows(t[1].Rows, t[1].Cols, func(c *call, w *worker, b block) {
		dgu, dy, gu, f := &c.t[0], &c.t[1], &c.t[2], c.cols
		for r := b.R0; r < b.R1; r++ {
			lo, hi := b.C0, b.C1
			dgate, dup := w.dest(0, dgu, r, lo, hi), w.dest(1, dgu, r, f+lo, f+hi)
			w.to(dgu).GLUBwd[c.a.Act](dgate, dup, w.load(2, dy, r, lo, hi), w.load(3, gu, r, lo, hi), w.load(4, gu, r, f+lo, f+hi))
			w.store(dgate, dgu, r, lo, hi)
			w.store(dup, dgu, r, f+lo, f+hi)
		}
	})
}

func weightedBwdBody(c *call, w *worker, b block) {
	weights, dweights := &c.t[3], &c.t[4]
	f := c.cols / weights.Cols
	for r := b.R0; r < b.R1; r++ {
		for k, weight := range weights.row(r, 0, weights.Cols) {
			var sum float32
			for lo := 0; lo < f; lo += buffered {
				sum += c.weightedBwd(w, r, k*f+lo, 2*k*f+lo, min(buffered, f-lo), f, weight)
			}
			if !dweights.Absent() {
				dweights.row(r, k, k+1)[0] = sum
			}
		}
	}
}

// weightedBwd computes n columns of a slot, at of dy and gate of gu, and returns their part
// of the weight's gradient.
func (c *call) weightedBwd(w *worker, r, at, gate, n, f int, weight float32) float32 {
	dgu, dy, gu := &c.t[0], &c.t[1], &c.t[2]
	dgate, dup := w.dest(0, dgu, r, gate, gate+n), w.dest(1, dgu, r, gate+f, gate+f+n)
	up := w.load(4, gu, r, gate+f, gate+f+n)
	w.v.GLUBwd[c.a.Act](dgate, dup, w.load(2, dy, r, at, at+n), w.load(3, gu, r, gate, gate+n), up)
	sum := w.v.Dot(dup, up)
	w.v.Scale(dgate, weight)
	w.v.Scale(dup, weight)
	w.store(dgate, dgu, r, gate, gate+n)
	w.store(dup, dgu, r, gate+f, gate+f+n)
	return sum
}
