package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// Act: y = act(x). ActBwd: dx = dy*act'(x).

// activation returns the function's value and derivative at x.
func activation(a graph.Activation, x float64) (y, dy float64) {
	switch a {
	case graph.GELUTanh:
		const k, q = 0.7978845608028654, 0.044715 // sqrt(2/pi)
		t := math.Tanh(k * (x + q*x*x*x))
		return x / 2 * (1 + t), (1+t)/2 + x/2*(1-t*t)*k*(1+3*q*x*x)
	case graph.GELUErf:
		phi := math.Erfc(-x/math.Sqrt2) / 2
		return x * phi, phi + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
	case graph.ReLU:
		if x > 0 {
			return x, 1
		}
		return max(0, x), 0 // keeps a NaN
	case graph.SiLU:
		s := 1 / (1 + math.Exp(-x))
		return x * s, s + x*s*(1-s)
	}
	panic("kernel: unknown activation")
}

func actRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, x := &t[graph.ActY], &t[graph.ActX]
	for r := range y.Rows {
		for c := range y.Cols {
			v, _ := activation(a.Act, x.At(r, c))
			y.Set(r, c, v)
		}
	}
}

func actBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dx, dy, x := &t[graph.ActBwdDX], &t[graph.ActBwdDY], &t[graph.ActBwdX]
	for r := range dx.Rows {
		for c := range dx.Cols {
			_, d := activation(a.Act, x.At(r, c))
			dx.Set(r, c, dy.At(r, c)*d)
		}
	}
}

func act(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).past().inBuffers(2).byElements(2, func(c *call, w *worker, b block) {
		f := w.to(&c.t[graph.ActY]).Act[c.a.Act]
		for r := b.R0; r < b.R1; r++ {
			y := w.dest(0, &c.t[graph.ActY], r, b.C0, b.C1)
			f(y, w.load(1, &c.t[graph.ActX], r, b.C0, b.C1))
			w.store(y, &c.t[graph.ActY], r, b.C0, b.C1)
		}
	})
}

func actBwd(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).past().inBuffers(3).byElements(3, func(c *call, w *worker, b block) {
		f := w.to(&c.t[graph.ActBwdDX]).ActBwd[c.a.Act]
		for r := b.R0; r < b.R1; r++ {
			dx := w.dest(0, &c.t[graph.ActBwdDX], r, b.C0, b.C1)
			f(dx, w.load(1, &c.t[graph.ActBwdDY], r, b.C0, b.C1), w.load(2, &c.t[graph.ActBwdX], r, b.C0, b.C1))
			w.store(dx, &c.t[graph.ActBwdDX], r, b.C0, b.C1)
		}
	})
}
