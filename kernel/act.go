package kernel

import "github.com/athanor-llm/athanor/graph"

// Act: y = act(x). ActBwd: dx = dy*act'(x).

func actRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, x := &t[graph.ActY], &t[graph.ActX]
	for r := range y.Rows {
		for c := range y.Cols {
			v, _ := a.Act.At(x.At(r, c))
			y.Set(r, c, v)
		}
	}
}

func actBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dx, dy, x := &t[graph.ActBwdDX], &t[graph.ActBwdDY], &t[graph.ActBwdX]
	for r := range dx.Rows {
		for c := range dx.Cols {
			_, d := a.Act.At(x.At(r, c))
			dx.Set(r, c, dy.At(r, c)*d)
		}
	}
}

func act(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).bypassCaches().inBuffers(2).byElements(2, func(c *call, w *worker, b block) {
		f := w.storesFor(&c.t[graph.ActY]).Act[c.a.Act]
		for r := b.R0; r < b.R1; r++ {
			y := w.dest(0, &c.t[graph.ActY], r, b.C0, b.C1)
			f(y, w.load(1, &c.t[graph.ActX], r, b.C0, b.C1))
			w.store(y, &c.t[graph.ActY], r, b.C0, b.C1)
		}
	})
}

func actBwd(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).bypassCaches().inBuffers(3).byElements(3, func(c *call, w *worker, b block) {
		f := w.storesFor(&c.t[graph.ActBwdDX]).ActBwd[c.a.Act]
		for r := b.R0; r < b.R1; r++ {
			dx := w.dest(0, &c.t[graph.ActBwdDX], r, b.C0, b.C1)
			f(dx, w.load(1, &c.t[graph.ActBwdDY], r, b.C0, b.C1), w.load(2, &c.t[graph.ActBwdX], r, b.C0, b.C1))
			w.store(dx, &c.t[graph.ActBwdDX], r, b.C0, b.C1)
		}
	})
}
