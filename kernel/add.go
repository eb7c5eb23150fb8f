package kernel

import "github.com/athanor-llm/athanor/graph"

// Add: y += x, element by element.

func addRef(_ *Env, _ *graph.Attr, t []Tensor) {
	y, x := &t[graph.AddY], &t[graph.AddX]
	for r := range y.Rows {
		for c := range y.Cols {
			y.Set(r, c, y.At(r, c)+x.At(r, c))
		}
	}
}

func add(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byElements(2, func(c *call, w *worker, b block) {
		for r := b.R0; r < b.R1; r++ {
			y := w.load(0, &c.t[graph.AddY], r, b.C0, b.C1)
			w.v.Add(y, w.load(1, &c.t[graph.AddX], r, b.C0, b.C1), 0)
			w.store(y, &c.t[graph.AddY], r, b.C0, b.C1)
		}
	})
}
