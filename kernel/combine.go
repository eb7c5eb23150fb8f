package kernel

import "github.com/athanor-llm/athanor/graph"

// Combine: y = res + the slots of x, ascending, in fp32. With Attr.Acc, y starts from its old
// value.

func combineRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, x, res := &t[graph.CombineY], &t[graph.CombineX], &t[graph.CombineRes]
	for r := range y.Rows {
		for c := range y.Cols {
			var s float64
			if !res.Absent() {
				s = res.At(r, c)
			}
			for k := c; k < x.Cols; k += y.Cols {
				s += x.At(r, k)
			}
			y.put(a.Acc, r, c, s)
		}
	}
}

func combine(e *Env, a *graph.Attr, t []Tensor) {
	y, from := &t[graph.CombineY], t[graph.CombineRes]
	if a.Acc {
		from = *y
	}
	c := e.begin(a, t)
	c.t[graph.CombineRes] = from
	c.blocks(y.Rows, y.Cols, max(1, grain/max(t[graph.CombineX].Cols, 1)), y.Cols, func(c *call, w *worker, b block) {
		for r := b.R0; r < b.R1; r++ {
			for lo := 0; lo < c.cols; lo += buffered {
				combineRow(c, w, r, lo, min(lo+buffered, c.cols))
			}
		}
	})
}

// combineRow adds columns [lo, hi) of a row in a buffer, since y may be res.
func combineRow(c *call, w *worker, r, lo, hi int) {
	y, x, from := &c.t[graph.CombineY], &c.t[graph.CombineX], &c.t[graph.CombineRes]
	sum := w.tmp(0, hi-lo)
	if from.Absent() {
		clear(sum)
	} else {
		copy(sum, w.load(1, from, r, lo, hi))
	}
	for k := 0; k < x.Cols; k += y.Cols {
		if x.DType == graph.BF16 {
			w.v.Half.Add(sum, x.row16(r, k+lo, k+hi), y.Cols)
		} else {
			w.v.Add(sum, x.row(r, k+lo, k+hi), y.Cols)
		}
	}
	if y.DType == graph.F32 {
		copy(y.row(r, lo, hi), sum)
	} else {
		w.store(sum, y, r, lo, hi)
	}
}
