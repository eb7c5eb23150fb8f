package kernel

import "github.com/athanor-llm/athanor/graph"

// Scale: y *= Attr.Scale, element by element.

func scaleRef(_ *Env, a *graph.Attr, t []Tensor) {
	y := &t[graph.ScaleY]
	for r := range y.Rows {
		for c := range y.Cols {
			y.Set(r, c, y.At(r, c)*a.Scale)
		}
	}
}

func scale(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byElements(1, func(c *call, w *worker, b block) {
		for r := b.R0; r < b.R1; r++ {
			y := w.load(0, &c.t[graph.ScaleY], r, b.C0, b.C1)
			w.v.Scale(y, float32(c.a.Scale))
			w.store(y, &c.t[graph.ScaleY], r, b.C0, b.C1)
		}
	})
}
