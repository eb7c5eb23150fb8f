package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// XIELU (2411.13010), an activation with two parameters that are trained, of which softplus makes p and, with beta, n:
//
//	y = p*x^2 + beta*x                         x > 0
//	y = n*(expm1(min(x, eps)) - x) + beta*x    otherwise
//
// XIELUBwd also sums, over the columns of each token, what makes the gradients of the parameters. BiasGrad adds these up over tokens.

// xieluShape has the constants of a call, and the derivatives of p and n with respect to the parameters.
type xieluShape struct{ p, n, beta, eps, dp, dn float64 }

// xieluOf reads the parameters, which are operands positive to positive+3.
func xieluOf(t []Tensor, positive int) (s xieluShape) {
	p, n := t[positive].At(0, 0), t[positive+1].At(0, 0)
	s.beta, s.eps = stateOf(&t[positive+2], 0), stateOf(&t[positive+3], 0)
	s.p, s.dp = softplus(p)
	s.n, s.dn = softplus(n)
	s.n += s.beta
	return s
}

// at returns the value at x, its derivative, and that with respect to p and n.
func (s *xieluShape) at(x float64) (y, dx, dp, dn float64) {
	if x > 0 {
		return s.p*x*x + s.beta*x, 2*s.p*x + s.beta, x * x, 0
	}
	e := math.Expm1(min(x, s.eps))
	slope := e
	if x >= s.eps {
		slope = -1 // what is above eps is cut off
	}
	return s.n*(e-x) + s.beta*x, s.n*slope + s.beta, 0, e - x
}

func xieluRef(_ *Env, _ *graph.Attr, t []Tensor) {
	y, x, s := &t[graph.XIELUY], &t[graph.XIELUX], xieluOf(t, graph.XIELUPositive)
	for r := range y.Rows {
		for c := range y.Cols {
			v, _, _, _ := s.at(x.At(r, c))
			y.Set(r, c, v)
		}
	}
}

func xieluBwdRef(_ *Env, _ *graph.Attr, t []Tensor) {
	dx, dy, x, s := &t[graph.XIELUBwdDX], &t[graph.XIELUBwdDY], &t[graph.XIELUBwdX], xieluOf(t, graph.XIELUBwdPositive)
	terms := optional(t, graph.XIELUBwdTerms)
	for r := range dx.Rows {
		var p, n float64
		for c := range dx.Cols {
			d := dy.At(r, c)
			_, slope, dp, dn := s.at(x.At(r, c))
			dx.Set(r, c, d*slope)
			p, n = p+d*dp, n+d*dn
		}
		if terms != nil {
			terms.Set(r, 0, p*s.dp)
			terms.Set(r, 1, n*s.dn)
		}
	}
}

func xielu(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).bypassCaches().inBuffers(2).byElements(2, func(c *call, w *worker, b block) {
		s, y := xieluOf(c.t[:], graph.XIELUPositive), &c.t[graph.XIELUY]
		f := w.storesFor(y).XIELU
		for r := b.R0; r < b.R1; r++ {
			out := w.dest(0, y, r, b.C0, b.C1)
			f(out, w.load(1, &c.t[graph.XIELUX], r, b.C0, b.C1), float32(s.p), float32(s.n), float32(s.beta), float32(s.eps))
			w.store(out, y, r, b.C0, b.C1)
		}
	})
}

func xieluBwd(e *Env, a *graph.Attr, t []Tensor) {
	dx := &t[graph.XIELUBwdDX]
	e.begin(a, t).byRows(dx.Rows, dx.Cols, func(c *call, w *worker, b block) {
		s, dx, terms := xieluOf(c.t[:], graph.XIELUBwdPositive), &c.t[graph.XIELUBwdDX], &c.t[graph.XIELUBwdTerms]
		for r := b.R0; r < b.R1; r++ {
			out := w.dest(0, dx, r, 0, c.cols)
			dy, x := w.load(1, &c.t[graph.XIELUBwdDY], r, 0, c.cols), w.load(2, &c.t[graph.XIELUBwdX], r, 0, c.cols)
			if !terms.Absent() { // first, since dx may be where dy is
				sums := terms.row(r, 0, 2)
				p, n := w.v.XIELUSums(dy, x, float32(s.eps))
				sums[0], sums[1] = p*float32(s.dp), n*float32(s.dn)
			}
			w.v.XIELUBwd(out, dy, x, float32(s.p), float32(s.n), float32(s.beta), float32(s.eps))
			w.store(out, dx, r, 0, c.cols)
		}
	})
}
