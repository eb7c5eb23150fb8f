package kernel

import (
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// Linear, LinearDX and LinearDW are the three products of a linear layer. Their bits do
// not depend on any cut, by the law of package gemm: each element is one chain of fused
// multiply-adds in order of k. (Products of two bf16 operands are added in pairs, so the
// tokens of LinearDW may then be cut at even places only. With tile registers they are
// added in blocks: in Linear and LinearDX, whose inner dimension no plan cuts, and in
// LinearDW where Attr.Cut allows it.)

func linear(e *Env, a *graph.Attr, t []Tensor) {
	y, x, w, bias, res := &t[graph.LinearY], &t[graph.LinearX], &t[graph.LinearW], &t[graph.LinearBias], &t[graph.LinearRes]
	init := gemm.Init{Bias: e.biasRow(bias), Residual: res.matrix()}
	if a.Acc {
		init = y.sum(true)
	}
	e.product(a, a.WT, y, x, w, init)
}

// biasRow returns a bias as float32, or nil if it is absent.
func (e *Env) biasRow(t *Tensor) []float32 {
	switch {
	case t.Absent():
		return nil
	case t.DType == graph.F32:
		return t.row(0, 0, t.Cols)
	}
	if cap(e.bias) < t.Cols {
		e.bias = make([]float32, t.Cols)
	}
	e.V.Widen(e.bias[:t.Cols], t.row16(0, 0, t.Cols))
	return e.bias[:t.Cols]
}

func linearDX(e *Env, a *graph.Attr, t []Tensor) {
	dx, dy, w, x := &t[graph.LinearDXDX], &t[graph.LinearDXDY], &t[graph.LinearDXW], &t[graph.LinearDXX]
	e.product(a, !a.WT, dx, dy, w, dx.sum(a.Acc))
	if !x.Absent() {
		actBwd(e, a, []Tensor{*dx, *dx, *x})
	}
}

func linearDW(e *Env, a *graph.Attr, t []Tensor) {
	form := gemm.TN
	if a.Cut > 0 && a.Cut%gemm.Block == 0 {
		form = gemm.TNB
	}
	for ; len(t) > graph.LinearDWDY && !t[graph.LinearDWDW].Absent(); t = t[graph.LinearDWDW2:] {
		dw, x, dy := &t[graph.LinearDWDW], &t[graph.LinearDWX], &t[graph.LinearDWDY]
		if a.WT {
			x, dy = dy, x
		}
		e.Gemm.Gemm(form, dw.Rows, dw.Cols, x.Rows, x.matrix(), dy.matrix(), dw.matrix(), dw.sum(a.Acc))
	}
}

func (t *Tensor) matrix() gemm.Matrix {
	return gemm.Matrix{Data: t.F32, Half: t.BF16, Stride: t.Stride}
}

// sum returns the initial value for a Sum operand: t itself if acc, else zero.
func (t *Tensor) sum(acc bool) gemm.Init {
	if acc {
		return gemm.Init{Residual: t.matrix()}
	}
	return gemm.Init{}
}
