package kernel

import "github.com/athanor-llm/athanor/graph"

// SwiGLU (Shazeer, 2002.05202): y = act(gate)*up, where gu = gate|up side by side and
// act is SiLU or, in GeGLU, GELU. SwiGLUBwd: dgate = dy*up*act'(gate), dup = dy*act(gate).

func swigluRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, gu := &t[0], &t[1]
	for r := range y.Rows {
		for c := range y.Cols {
			s, _ := activation(a.Act, gu.At(r, c))
			y.Set(r, c, s*gu.At(r, y.Cols+c))
		}
	}
}

func swigluBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dgu, dy, gu := &t[0], &t[1], &t[2]
	for r := range dy.Rows {
		for c := range dy.Cols {
			s, ds := activation(a.Act, gu.At(r, c))
			d := dy.At(r, c)
			up := gu.At(r, dy.Cols+c)
			dgu.Set(r, c, d*up*ds)
			dgu.Set(r, dy.Cols+c, d*s)
		}
	}
}

func swiglu(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).past().inBuffers(2).byRows(t[0].Rows, t[0].Cols, func(c *call, w *worker, b block) {
		y, gu, f := &c.t[0], &c.t[1], c.cols
		for r := b.R0; r < b.R1; r++ {
			out := w.dest(0, y, r, b.C0, b.C1)
			w.to(y).GLU[c.a.Act](out, w.load(1, gu, r, b.C0, b.C1), w.load(2, gu, r, f+b.C0, f+b.C1))
			w.store(out, y, r, b.C0, b.C1)
		}
	})
}

func swigluBwd(e *Env, a *graph.Attr, t []Tensor) {
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
