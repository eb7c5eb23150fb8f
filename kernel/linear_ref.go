package kernel

import "github.com/athanor-llm/athanor/graph"

// weight returns element (i, o) of a weight: input i, output o.
func weight(w *Tensor, transposed bool, i, o int) float64 {
	if transposed {
		return w.At(o, i)
	}
	return w.At(i, o)
}

// plain returns a weight for in inputs and out outputs, unpacked if it is packed.
func plain(a *graph.Attr, w *Tensor, in, out int) *Tensor {
	if !a.NF4 {
		return w
	}
	cols := out
	if a.WT {
		cols = in
	}
	y := unpacked(w, cols)
	return &y
}

func linearRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, x, w := &t[graph.LinearY], &t[graph.LinearX], plain(a, &t[graph.LinearW], t[graph.LinearX].Cols, t[graph.LinearY].Cols)
	if a.FP8 {
		x, w = rounded8(x, false), rounded8(w, !a.WT)
	}
	bias, res := &t[graph.LinearBias], &t[graph.LinearRes]
	for r := range y.Rows {
		for o := range y.Cols {
			var s float64
			if !bias.Absent() {
				s = bias.At(0, o)
			}
			if !res.Absent() {
				s += res.At(r, o)
			}
			for i := range x.Cols {
				s += x.At(r, i) * weight(w, a.WT, i, o)
			}
			y.put(a.Acc, r, o, s)
		}
	}
}

func linearDXRef(_ *Env, a *graph.Attr, t []Tensor) {
	dx, dy := &t[graph.LinearDXDX], &t[graph.LinearDXDY]
	w, x := plain(a, &t[graph.LinearDXW], t[graph.LinearDXDX].Cols, t[graph.LinearDXDY].Cols), &t[graph.LinearDXX]
	if a.FP8 {
		dy, w = rounded8(dy, false), rounded8(w, a.WT)
	}
	for r := range dx.Rows {
		for i := range dx.Cols {
			var s float64
			for o := range dy.Cols {
				s += dy.At(r, o) * weight(w, a.WT, i, o)
			}
			if !x.Absent() {
				_, d := a.Act.At(x.At(r, i))
				s *= d
			}
			dx.put(a.Acc, r, i, s)
		}
	}
}

func linearDWRef(_ *Env, a *graph.Attr, t []Tensor) {
	for ; len(t) > graph.LinearDWDY && !t[graph.LinearDWDW].Absent(); t = t[graph.LinearDWDW2:] {
		dw, x, dy := &t[graph.LinearDWDW], &t[graph.LinearDWX], &t[graph.LinearDWDY]
		for i := range x.Cols {
			for o := range dy.Cols {
				var s float64
				for r := range x.Rows {
					s += x.At(r, i) * dy.At(r, o)
				}
				if a.WT {
					dw.put(a.Acc, o, i, s)
				} else {
					dw.put(a.Acc, i, o, s)
				}
			}
		}
	}
}
