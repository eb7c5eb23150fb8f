package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// AdamW (Loshchilov and Hutter, 1711.05101), the arithmetic of
// torch.optim.AdamW: decay first, then the moments, then the step
//
//	p *= 1 - lr*Decay
//	m = Beta1*m + (1-Beta1)*g;  v = Beta2*v + (1-Beta2)*g*g
//	p -= lr/c1 * m / (sqrt(v)/sqrt(c2) + Eps)
//
// with g scaled by the clip factor; a factor of 0 skips all that. One pass over 28 bytes per
// parameter, or 20 if the moments are bf16; the same pass writes the bf16 copy of p, or reads
// and writes p in halves (float16.Halves), which take 4 bytes where p and a copy take 6.
//
// bf16 moments need stochastic rounding: with Beta2 = 0.999 a step changes v by
// less than half a unit in the last place, so rounding to nearest would never let v
// decrease. The update of p uses the unrounded moments.

func adamwRef(_ *Env, a *graph.Attr, t []Tensor) {
	p, m, v, g, clip, scalars, p16, rest := &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]
	setUpper := func(t *Tensor, r, c int, x float64) (lower uint16) {
		upper, lower := float16.Halves(float32(x))
		if t.Set(r, c, x); t.DType == graph.BF16 {
			t.BF16[r*t.Stride+c] = upper
		}
		return lower
	}
	factor := 1.0
	if !clip.Absent() {
		factor = clip.At(0, 0)
	}
	lr := scalars.At(0, graph.ScalarLR)
	c1, c2 := scalars.At(0, graph.ScalarCorrection1), scalars.At(0, graph.ScalarCorrection2)
	for r := range p.Rows {
		for c := range p.Cols {
			if factor == 0 { // skipped
				if !p16.Absent() {
					setUpper(p16, r, c, p.At(r, c))
				}
				continue
			}
			d := g.At(r, c) * factor
			mm := a.Beta1*m.At(r, c) + (1-a.Beta1)*d
			vv := a.Beta2*v.At(r, c) + (1-a.Beta2)*d*d
			was := p.At(r, c)
			if !rest.Absent() {
				was = float64(float16.Join(uint16(math.Float32bits(float32(was))>>16), uint16(rest.At(r, c))))
			}
			pp := was*(1-lr*a.Decay) - lr/c1*mm/(math.Sqrt(vv)/math.Sqrt(c2)+a.Eps)
			for k, x := range []float64{pp, mm, vv} {
				switch {
				case k == 0 && !rest.Absent():
					rest.Set(r, c, float64(setUpper(p, r, c, x)))
					continue
				case t[k].DType != graph.BF16:
					t[k].Set(r, c, x)
					continue
				}
				low, high := graph.ChanceKey(scalars.F32[graph.ScalarChance], a.Param, k)
				t[k].BF16[r*t[k].Stride+c] = float16.DrawBF16(float32(x), simd.Draws(uint32(a.First+r*p.Cols+c), low, high))
			}
			if !p16.Absent() {
				setUpper(p16, r, c, p.At(r, c))
			}
		}
	}
}

func adamw(e *Env, a *graph.Attr, t []Tensor) {
	if !t[4].Absent() && t[4].F32[0] == 0 {
		if !t[6].Absent() { // every instruction writes all of its results
			upper(e, a, t[6], t[0])
		}
		return
	}
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
	for k := range c.keys {
		c.keys[k][0], c.keys[k][1] = graph.ChanceKey(s[graph.ScalarChance], a.Param, k)
	}
	c.t[4], c.t[5] = t[6], t[7] // byElements iterates over the leading operands
	c.inBuffers(3).byElements(6, func(c *call, w *worker, b block) {
		p16, rest := &c.t[4], &c.t[5]
		for r := b.R0; r < b.R1; r++ {
			p, m := w.load(0, &c.t[0], r, b.C0, b.C1), w.load(1, &c.t[1], r, b.C0, b.C1)
			v, g := w.load(2, &c.t[2], r, b.C0, b.C1), w.load(3, &c.t[3], r, b.C0, b.C1)
			switch {
			case !rest.Absent():
				low := rest.row16(r, b.C0, b.C1)
				w.v.Join(p, low)
				w.v.AdamW(p, m, v, g, &c.adam)
				w.v.Halve(c.t[0].row16(r, b.C0, b.C1), low, p)
			case !p16.Absent():
				w.v.AdamW16(p, m, v, g, p16.row16(r, b.C0, b.C1), &c.adam)
			default:
				w.v.AdamW(p, m, v, g, &c.adam)
			}
			first := uint32(c.a.First + r*c.t[0].Cols + b.C0)
			for k, x := range [...][]float32{p, m, v} {
				if c.t[k].DType == graph.BF16 && (k > 0 || rest.Absent()) {
					w.v.Draw(c.t[k].row16(r, b.C0, b.C1), x, first, c.keys[k][0], c.keys[k][1])
				}
			}
		}
	})
}

// upper writes the upper halves of p (see float16.Halves).
func upper(e *Env, a *graph.Attr, p16, p Tensor) {
	c := e.begin(a, []Tensor{p16, p})
	c.byElements(2, func(c *call, w *worker, b block) {
		for r := b.R0; r < b.R1; r++ {
			y := c.t[0].row16(r, b.C0, b.C1)
			for i, x := range c.t[1].row(r, b.C0, b.C1) {
				y[i], _ = float16.Halves(x)
			}
		}
	})
}
