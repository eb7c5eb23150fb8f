package kernel

import "github.com/athanor-llm/athanor/graph"

// ShortConv: a causal convolution of each column over a few tokens, then an activation, see graph.ShortConv. A task has a band of
// columns of a sequence, since each row needs rows before it (or, in the gradient of x, after it), of which it keeps the last few.
//
//	y[n]  = act(z[n])                      z[n] = bias + sum of w[k]*x[n-K+1+k]
//	dz[n] = dy[n]*act'(z[n])
//	dx[n] = sum of w[k]*dz[n+K-1-k]
//	dw[k] = sum of dz[n]*x[n-K+1+k]        dbias = sum of dz[n]

// documentOf returns where in its sequence the document of a row begins.
func documentOf(starts *Tensor, r int) int {
	if starts == nil || starts.Absent() {
		return 0
	}
	return int(starts.I32[r*starts.Stride])
}

// convRef returns z in row r and column c.
func convRef(a *graph.Attr, x, w, starts, bias *Tensor, r, c int) (z float64) {
	at, begin := r%a.Seq, documentOf(starts, r)
	if bias != nil {
		z = bias.At(0, c)
	}
	for k := range w.Cols {
		if back := w.Cols - 1 - k; at-back >= begin {
			z += w.At(c, k) * x.At(r-back, c)
		}
	}
	return z
}

func shortConvRef(_ *Env, a *graph.Attr, t []Tensor) {
	y := &t[graph.ShortConvY]
	for r := range y.Rows {
		for c := range y.Cols {
			s, _ := a.Act.At(convRef(a, &t[graph.ShortConvX], &t[graph.ShortConvW], optional(t, graph.ShortConvStarts), optional(t, graph.ShortConvBias), r, c))
			y.Set(r, c, s)
		}
	}
}

func shortConvDXRef(_ *Env, a *graph.Attr, t []Tensor) {
	dx, dy, x, w := &t[graph.ShortConvDXDX], &t[graph.ShortConvDXDY], &t[graph.ShortConvDXX], &t[graph.ShortConvDXW]
	starts, bias := optional(t, graph.ShortConvDXStarts), optional(t, graph.ShortConvDXBias)
	for r := range dx.Rows {
		for c := range dx.Cols {
			var sum float64
			for k := range w.Cols {
				ahead := w.Cols - 1 - k
				if r%a.Seq+ahead >= a.Seq || documentOf(starts, r+ahead) > r%a.Seq {
					continue
				}
				_, slope := a.Act.At(convRef(a, x, w, starts, bias, r+ahead, c))
				sum += w.At(c, k) * dy.At(r+ahead, c) * slope
			}
			dx.Set(r, c, sum)
		}
	}
}

func shortConvDWRef(_ *Env, a *graph.Attr, t []Tensor) {
	dw, dy, x, w := &t[graph.ShortConvDWDW], &t[graph.ShortConvDWDY], &t[graph.ShortConvDWX], &t[graph.ShortConvDWW]
	starts, bias := optional(t, graph.ShortConvDWStarts), optional(t, graph.ShortConvDWBias)
	for c := range dw.Rows {
		if db := optional(t, graph.ShortConvDWDBias); db != nil {
			var sum float64
			for r := range x.Rows {
				_, slope := a.Act.At(convRef(a, x, w, starts, bias, r, c))
				sum += dy.At(r, c) * slope
			}
			db.put(a.Acc, 0, c, sum)
		}
		for k := range dw.Cols {
			var sum float64
			for r := range x.Rows {
				if back := w.Cols - 1 - k; r%a.Seq-back >= documentOf(starts, r) {
					_, slope := a.Act.At(convRef(a, x, w, starts, bias, r, c))
					sum += dy.At(r, c) * slope * x.At(r-back, c)
				}
			}
			dw.put(a.Acc, c, k, sum)
		}
	}
}

// convBand is the number of columns of a task: its rows and weights stay in the L1 cache.
const convBand = 256

// convolution is a band of columns [lo, hi) of a call. Its buffers are the worker's from number 0 on: the weights, one tap after the
// other; sums; then, for each of the last rows, x and dz.
type convolution struct {
	w            *worker
	act          *graph.Attr
	x, starts    *Tensor
	lo, hi, taps int
	weights      []float32
	bias         []float32 // nil: none
}

// The bias is the operand after starts, or after pos.
func (w *worker) convolution(c *call, x, weights, starts int, b block) convolution {
	v := convolution{w: w, act: c.a, x: &c.t[x], starts: &c.t[starts], lo: b.C0, hi: b.C1, taps: c.t[weights].Cols}
	n := b.C1 - b.C0
	v.weights = w.tmp(0, v.taps*n)
	for i := range n {
		for k, x := range w.load(1, &c.t[weights], b.C0+i, 0, v.taps) {
			v.weights[k*n+i] = x
		}
	}
	if bias := &c.t[starts+1]; !bias.Absent() {
		v.bias = w.load(8, bias, 0, b.C0, b.C1)
	}
	return v
}

// tap returns the weights of the k-th row that a sum has.
func (v *convolution) tap(k int) []float32 { n := v.hi - v.lo; return v.weights[k*n : (k+1)*n] }

// input returns row r of x, which stays in its buffer until the row is read that is taps rows behind it.
func (v *convolution) input(r int) []float32 {
	n := v.hi - v.lo
	if v.x.DType == graph.F32 {
		return v.x.row(r, v.lo, v.hi)
	}
	return v.w.tmp(2, v.taps*n)[r%v.taps*n:][:n]
}

// begin returns what sums begin with, in their buffer.
func (v *convolution) begin() []float32 {
	z := v.w.tmp(3, v.hi-v.lo)
	clear(z[copy(z, v.bias):])
	return z
}

// sum returns the sum of row r, whose earlier rows have been read.
func (v *convolution) sum(r int) []float32 {
	z := v.begin()
	if v.x.DType != graph.F32 {
		v.w.v.Widen(v.input(r), v.x.row16(r, v.lo, v.hi))
	}
	for k := v.first(r); k < v.taps; k++ {
		v.w.v.NormDWR(z, v.tap(k), v.input(r-(v.taps-1-k)), 1, 0)
	}
	return z
}

// first returns the first tap that has a row in the document of row r.
func (v *convolution) first(r int) int {
	return max(0, v.taps-1-(r%v.act.Seq-documentOf(v.starts, r)))
}

// slope returns dz of row r, in buffer k.
func (v *convolution) slope(k int, dy *Tensor, r int) []float32 {
	n := v.hi - v.lo
	dz := v.w.tmp(k, v.taps*n)[r%v.taps*n:][:n]
	v.w.v.ActBwd[v.act.Act](dz, v.w.load(5, dy, r, v.lo, v.hi), v.sum(r))
	return dz
}

func shortConv(e *Env, a *graph.Attr, t []Tensor) {
	y := &t[graph.ShortConvY]
	e.begin(a, t).blocks(y.Rows, y.Cols, a.Seq, convBand, func(c *call, w *worker, b block) {
		v, y := w.convolution(c, graph.ShortConvX, graph.ShortConvW, graph.ShortConvStarts, b), &c.t[graph.ShortConvY]
		for r := b.R0; r < b.R1; r++ {
			out := w.dest(4, y, r, b.C0, b.C1)
			w.v.Act[c.a.Act](out, v.sum(r))
			w.store(out, y, r, b.C0, b.C1)
		}
	})
}

func shortConvDX(e *Env, a *graph.Attr, t []Tensor) {
	dx := &t[graph.ShortConvDXDX]
	e.begin(a, t).blocks(dx.Rows, dx.Cols, a.Seq, convBand, func(c *call, w *worker, b block) {
		v, dx := w.convolution(c, graph.ShortConvDXX, graph.ShortConvDXW, graph.ShortConvDXStarts, b), &c.t[graph.ShortConvDXDX]
		n := b.C1 - b.C0
		for m := b.R0; m < b.R1+v.taps-1; m++ { // row r is complete when dz of row r+taps-1 is known
			if m < b.R1 {
				v.slope(6, &c.t[graph.ShortConvDXDY], m)
			}
			r := m - (v.taps - 1)
			if r < b.R0 {
				continue
			}
			out := w.dest(4, dx, r, b.C0, b.C1)
			clear(out)
			for k := v.taps - 1; k >= 0; k-- {
				if at := r + v.taps - 1 - k; at < b.R1 && k >= v.first(at) {
					w.v.NormDWR(out, v.tap(k), w.tmp(6, v.taps*n)[at%v.taps*n:][:n], 1, 0)
				}
			}
			w.store(out, dx, r, b.C0, b.C1)
		}
	})
}

func shortConvDW(e *Env, a *graph.Attr, t []Tensor) {
	x := &t[graph.ShortConvDWX]
	e.begin(a, t).byColumns(x.Rows, x.Cols, 64, func(c *call, w *worker, b block) {
		for lo := b.C0; lo < b.C1; lo += convBand {
			w.convDW(c, block{b.R0, b.R1, lo, min(lo+convBand, b.C1)})
		}
	})
}

func (w *worker) convDW(c *call, b block) {
	v, dw := w.convolution(c, graph.ShortConvDWX, graph.ShortConvDWW, graph.ShortConvDWStarts, b), &c.t[graph.ShortConvDWDW]
	n := b.C1 - b.C0
	sums := w.tmp(7, v.taps*n)
	for i := range n {
		for k := range v.taps {
			sums[k*n+i] = 0
			if c.a.Acc {
				sums[k*n+i] = dw.row(b.C0+i, k, k+1)[0]
			}
		}
	}
	var bias []float32
	if db := &c.t[graph.ShortConvDWDBias]; !db.Absent() {
		bias = w.sum(9, db, c.a.Acc, b)
	}
	for r := b.R0; r < b.R1; r++ {
		dz := v.slope(6, &c.t[graph.ShortConvDWDY], r)
		for k := v.first(r); k < v.taps; k++ {
			w.v.NormDWR(sums[k*n:(k+1)*n], dz, v.input(r-(v.taps-1-k)), 1, 0)
		}
		w.v.Add(bias, dz, 0)
	}
	for i := range n {
		for k := range v.taps {
			dw.row(b.C0+i, k, k+1)[0] = sums[k*n+i]
		}
	}
}
