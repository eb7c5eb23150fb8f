package kernel

import "github.com/athanor-llm/athanor/graph"

// Scale: y *= Attr.Scale or an operand, element by element.

// scaleFactor returns what y is multiplied by.
func scaleFactor(a *graph.Attr, t []Tensor) float64 {
	if a.Scale != 0 {
		return a.Scale
	}
	return stateOf(&t[graph.ScaleBy], 0)
}

func scaleRef(_ *Env, a *graph.Attr, t []Tensor) {
	y := &t[graph.ScaleY]
	by := scaleFactor(a, t)
	for r := range y.Rows {
		for c := range y.Cols {
			y.Set(r, c, y.At(r, c)*by)
		}
	}
}

func scale(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byElements(1, func(c *call, w *worker, b block) {
		by := float32(scaleFactor(c.a, c.t[:]))
		for r := b.R0; r < b.R1; r++ {
			y := w.load(0, &c.t[graph.ScaleY], r, b.C0, b.C1)
			w.v.Scale(y, by)
			w.store(y, &c.t[graph.ScaleY], r, b.C0, b.C1)
		}
	})
}
