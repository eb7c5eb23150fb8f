package kernel

import (
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// Linear, LinearDX and LinearDW are the three products of a linear layer. The
// engine's law makes their bits independent of any cut: each element is one
// chain of fused multiply-adds in order of k.
//
// Operands in bf16 are widened part by part into buffers of the Env, narrow
// results narrowed from one. Rows of tokens and columns of the weight are cut
// so that the buffers stay below some 16 MiB each, whatever the layer.

func linear(e *Env, a *graph.Attr, t []Tensor) {
	form := gemm.NN
	if a.WT {
		form = gemm.NT
	}
	e.rowProduct(form, &t[0], &t[1], &t[2], &t[3], &t[4])
}

func linearDX(e *Env, a *graph.Attr, t []Tensor) {
	form := gemm.NT
	if a.WT {
		form = gemm.NN
	}
	var res Tensor
	if a.Acc {
		res = t[0]
	}
	e.rowProduct(form, &t[0], &t[1], &t[2], &Tensor{}, &res)
}

func linearDW(e *Env, a *graph.Attr, t []Tensor) {
	if a.WT {
		e.tokenProduct(&t[0], &t[2], &t[1], a.Acc)
	} else {
		e.tokenProduct(&t[0], &t[1], &t[2], a.Acc)
	}
}

const (
	partRows  = 1024    // tokens widened at a time
	partElems = 1 << 22 // elements of a weight widened at a time
)

// rowProduct: y = bias + res + x*op(w), cut by rows of x and columns of y
// where something has to be widened.
func (e *Env) rowProduct(form gemm.Form, y, x, w, bias, res *Tensor) {
	m, n, k := y.Rows, y.Cols, x.Cols
	rows, cols := m, n
	if x.DType != graph.F32 || y.DType != graph.F32 || !res.Absent() && res.DType != graph.F32 {
		rows = partRows
	}
	if w.DType != graph.F32 || y.DType != graph.F32 {
		cols = max(32, partElems/max(k, 1)&^31)
	}
	for c0 := 0; c0 < n; c0 += cols {
		c1 := min(c0+cols, n)
		var wm gemm.Matrix
		if form == gemm.NN {
			wm = e.wide(0, w, 0, k, c0, c1)
		} else {
			wm = e.wide(0, w, c0, c1, 0, k)
		}
		var init gemm.Init
		if !bias.Absent() {
			init.Bias = e.wide(1, bias, 0, 1, c0, c1).Data
		}
		for r0 := 0; r0 < m; r0 += rows {
			r1 := min(r0+rows, m)
			xm, ym := e.wide(2, x, r0, r1, 0, k), e.target(3, y, r0, r1, c0, c1)
			init.Residual = gemm.Matrix{}
			if !res.Absent() {
				init.Residual = e.wide(3, res, r0, r1, c0, c1) // a widened one lies where the result will be or beside it
			}
			e.Gemm.Gemm(form, r1-r0, c1-c0, k, xm, wm, ym, init)
			e.narrow(3, y, r0, r1, c0, c1)
		}
	}
}

// tokenProduct: dw (+)= a^T*b over token rows, cut by tokens where something
// has to be widened: the later parts continue the sums.
func (e *Env) tokenProduct(dw, a, b *Tensor, acc bool) {
	m, n, k := dw.Rows, dw.Cols, a.Rows
	step := max(k, 1)
	if a.DType != graph.F32 || b.DType != graph.F32 {
		step = partRows
	}
	out := gemm.Matrix{Data: dw.F32, Stride: dw.Stride}
	for r0 := 0; r0 == 0 || r0 < k; r0 += step {
		r1 := min(r0+step, k)
		var init gemm.Init
		if acc || r0 > 0 {
			init.Residual = out
		}
		e.Gemm.Gemm(gemm.TN, m, n, r1-r0, e.wide(0, a, r0, r1, 0, m), e.wide(1, b, r0, r1, 0, n), out, init)
	}
}

// wide gives part of t as float32: its own memory or a copy in buffer k.
func (e *Env) wide(k int, t *Tensor, r0, r1, c0, c1 int) gemm.Matrix {
	part := t.part(r0, r1, c0, c1)
	if t.DType == graph.F32 {
		return part.matrix()
	}
	dst := e.buffer(k, r1-r0, c1-c0)
	e.convert(&dst, &part)
	return dst.matrix()
}

// target gives memory for part of t: its own or buffer k.
func (e *Env) target(k int, t *Tensor, r0, r1, c0, c1 int) gemm.Matrix {
	if t.DType == graph.F32 {
		part := t.part(r0, r1, c0, c1)
		return part.matrix()
	}
	dst := e.buffer(k, r1-r0, c1-c0)
	return dst.matrix()
}

// narrow ends what target began.
func (e *Env) narrow(k int, t *Tensor, r0, r1, c0, c1 int) {
	if t.DType != graph.F32 {
		src, part := e.buffer(k, r1-r0, c1-c0), t.part(r0, r1, c0, c1)
		e.convert(&part, &src)
	}
}

func (t *Tensor) matrix() gemm.Matrix { return gemm.Matrix{Data: t.F32, Stride: t.Stride} }

// buffer is the k-th of the Env's own matrices.
func (e *Env) buffer(k, rows, cols int) Tensor {
	if cap(e.wider[k]) < rows*cols {
		e.wider[k] = make([]float32, rows*cols)
	}
	return Tensor{Rows: rows, Cols: cols, Stride: cols, F32: e.wider[k][:rows*cols]}
}
