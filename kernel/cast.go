package kernel

import "github.com/athanor-llm/athanor/graph"

// Cast: dst = src in dst's type, rounded to nearest, ties to even.

func castRef(_ *Env, _ *graph.Attr, t []Tensor) {
	dst, src := &t[graph.CastDst], &t[graph.CastSrc]
	for r := range dst.Rows {
		for c := range dst.Cols {
			dst.Set(r, c, src.At(r, c))
		}
	}
}

func cast(e *Env, a *graph.Attr, t []Tensor) {
	if !isFloat(t[graph.CastDst].DType) || !isFloat(t[graph.CastSrc].DType) { // counters and totals have few elements
		castRef(e, a, t)
		return
	}
	e.begin(a, t).bypassCaches().byElements(2, func(c *call, w *worker, b block) {
		dst, src := &c.t[graph.CastDst], &c.t[graph.CastSrc]
		for r := b.R0; r < b.R1; r++ {
			switch {
			case dst.DType == graph.BF16 && src.DType == graph.BF16:
				copy(dst.row16(r, b.C0, b.C1), src.row16(r, b.C0, b.C1))
			case dst.DType == graph.BF16:
				w.out.Narrow(dst.row16(r, b.C0, b.C1), src.row(r, b.C0, b.C1))
			case src.DType == graph.BF16:
				w.out.Widen(dst.row(r, b.C0, b.C1), src.row16(r, b.C0, b.C1))
			default:
				copy(dst.row(r, b.C0, b.C1), src.row(r, b.C0, b.C1))
			}
		}
	})
}

func isFloat(d graph.DType) bool { return d == graph.F32 || d == graph.BF16 }
