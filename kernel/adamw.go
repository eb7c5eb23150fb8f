package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// AdamW (Loshchilov and Hutter, 1711.05101), the arithmetic of
// torch.optim.AdamW: decay first, then the moments, then the step
//
//	p *= 1 - lr*Decay
//	m = Beta1*m + (1-Beta1)*g;  v = Beta2*v + (1-Beta2)*g*g
//	p -= lr/c1 * m / (sqrt(v)/sqrt(c2) + Eps)
//
// with g scaled by the clip factor. One pass over 28 bytes per parameter; the
// bf16 copy of p is written in the same pass.

func adamwRef(_ *Env, a *graph.Attr, t []Tensor) {
	p, m, v, g, clip, scalars, p16 := &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6]
	factor := 1.0
	if !clip.Absent() {
		factor = clip.At(0, 0)
	}
	lr := scalars.At(0, graph.ScalarLR)
	c1, c2 := scalars.At(0, graph.ScalarCorrection1), scalars.At(0, graph.ScalarCorrection2)
	for r := range p.Rows {
		for c := range p.Cols {
			d := g.At(r, c) * factor
			mm := a.Beta1*m.At(r, c) + (1-a.Beta1)*d
			vv := a.Beta2*v.At(r, c) + (1-a.Beta2)*d*d
			m.Set(r, c, mm)
			v.Set(r, c, vv)
			p.Set(r, c, p.At(r, c)*(1-lr*a.Decay)-lr/c1*mm/(math.Sqrt(vv)/math.Sqrt(c2)+a.Eps))
			if !p16.Absent() {
				p16.Set(r, c, p.At(r, c))
			}
		}
	}
}

func adamw(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	s := t[5].F32
	lr := float64(s[graph.ScalarLR])
	c.adam = simd.AdamW{
		Clip:  1,
		Beta1: float32(a.Beta1), Rest1: float32(1 - a.Beta1),
		Beta2: float32(a.Beta2), Rest2: float32(1 - a.Beta2),
		Keep: float32(1 - lr*a.Decay),
		Step: float32(lr / float64(s[graph.ScalarCorrection1])),
		Root: float32(1 / math.Sqrt(float64(s[graph.ScalarCorrection2]))),
		Eps:  float32(a.Eps),
	}
	if !t[4].Absent() {
		c.adam.Clip = t[4].F32[0]
	}
	c.t[4] = t[6] // the operands that are walked come first
	c.byElements(5, func(c *call, w *worker, b block) {
		p16 := &c.t[4]
		for r := b.R0; r < b.R1; r++ {
			p, m := c.t[0].row(r, b.C0, b.C1), c.t[1].row(r, b.C0, b.C1)
			v, g := c.t[2].row(r, b.C0, b.C1), w.load(0, &c.t[3], r, b.C0, b.C1)
			if p16.Absent() {
				w.v.AdamW(p, m, v, g, &c.adam)
			} else {
				w.v.AdamW16(p, m, v, g, p16.row16(r, b.C0, b.C1), &c.adam)
			}
		}
	})
}
