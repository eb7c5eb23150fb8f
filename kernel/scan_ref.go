package kernel

import (
	"math"
	"slices"

	"github.com/athanor-llm/athanor/graph"
)

// The selective state-space scan as it is defined: one token after the other, in float64.

// advanceRef turns a head's state into that after the token of row r, and returns what it reads of it.
func (s *scanShape) advanceRef(state []float64, xbc, gates, skip *Tensor, r, h int) (o []float64) {
	keep, dt := math.Exp(gates.At(r, h)), gates.At(r, s.heads+h)
	o = make([]float64, s.p)
	for v := range s.p {
		x := xbc.At(r, h*s.p+v)
		o[v] = skip.At(0, h) * x
		for k := range s.n {
			i := k*s.p + v
			state[i] = keep*state[i] + xbc.At(r, s.b(h/s.each)+k)*dt*x
			o[v] += xbc.At(r, s.c(h/s.each)+k) * state[i]
		}
	}
	return o
}

func stateScanRef(_ *Env, a *graph.Attr, t []Tensor) {
	o, states, xbc, gates := &t[graph.StateScanO], &t[graph.StateScanStates], &t[graph.StateScanXBC], &t[graph.StateScanGates]
	s, starts := scanShapeOf(a, o), optional(t, graph.StateScanStarts)
	for h := range s.heads {
		state := make([]float64, s.n*s.p)
		for r := range o.Rows {
			at := r%a.Seq - documentOf(starts, r)
			if at == 0 {
				clear(state)
			}
			for v, x := range s.advanceRef(state, xbc, gates, &t[graph.StateScanSkip], r, h) {
				o.Set(r, h*s.p+v, x)
			}
			for c := range s.cols {
				states.Set(r, h*s.cols+c, 0)
			}
			if (at+1)%s.kept == 0 {
				for i, v := range state {
					states.Set(r-s.kept+1+i/s.cols, h*s.cols+i%s.cols, v)
				}
			}
		}
	}
}

// stateScanBwdRef does not read the states that were kept.
func stateScanBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dxbc, do := &t[graph.StateScanBwdDXBC], &t[graph.StateScanBwdDO]
	xbc, gates, skip := &t[graph.StateScanBwdXBC], &t[graph.StateScanBwdGates], &t[graph.StateScanBwdSkip]
	s, starts := scanShapeOf(a, do), optional(t, graph.StateScanBwdStarts)
	sums := make([]float64, dxbc.Rows*dxbc.Cols)
	for h := range s.heads {
		before, after, state := make([][]float64, do.Rows), make([][]float64, do.Rows), make([]float64, s.n*s.p)
		for r := range do.Rows {
			if r%a.Seq == documentOf(starts, r) {
				clear(state)
			}
			before[r] = slices.Clone(state)
			s.advanceRef(state, xbc, gates, skip, r, h)
			after[r] = slices.Clone(state)
		}
		d := make([]float64, s.n*s.p) // of the state after the token
		for r := do.Rows - 1; r >= 0; r-- {
			s.tokenBwdRef(before[r], after[r], d, t, r, h, sums[r*dxbc.Cols:][:dxbc.Cols])
			if r%a.Seq == documentOf(starts, r) {
				clear(d)
			}
		}
	}
	dxbc.storeAll(sums, false)
}

// tokenBwdRef turns d, the gradient of the state after a token, into that of the state before it, adds to the token's gradients, and
// sets those of its gates.
func (s *scanShape) tokenBwdRef(before, after, d []float64, t []Tensor, r, h int, sum []float64) {
	dgates, do := &t[graph.StateScanBwdDGates], &t[graph.StateScanBwdDO]
	xbc, gates, skip := &t[graph.StateScanBwdXBC], &t[graph.StateScanBwdGates], &t[graph.StateScanBwdSkip]
	keep, dt := math.Exp(gates.At(r, h)), gates.At(r, s.heads+h)
	b, c := s.b(h/s.each), s.c(h/s.each)
	var dlog, ddt, dskip float64
	for v := range s.p {
		x, dy := xbc.At(r, h*s.p+v), do.At(r, h*s.p+v)
		dskip += dy * x
		var fed float64 // of dt*x
		for k := range s.n {
			i := k*s.p + v
			sum[c+k] += after[i] * dy
			d[i] += xbc.At(r, c+k) * dy
			sum[b+k] += d[i] * dt * x
			fed += d[i] * xbc.At(r, b+k)
			dlog += d[i] * keep * before[i]
			d[i] *= keep
		}
		ddt += fed * x
		sum[h*s.p+v] += fed*dt + dy*skip.At(0, h)
	}
	dgates.Set(r, h, dlog)
	dgates.Set(r, s.heads+h, ddt)
	dgates.Set(r, 2*s.heads+h, dskip)
}

func stateScanAtRef(_ *Env, a *graph.Attr, t []Tensor) {
	o, states := &t[graph.StateScanAtO], &t[graph.StateScanAtState]
	s := scanShapeOf(a, o)
	eachStateRef(o, states, &t[graph.StateScanAtPos], s.heads, s.n, func(state []float64, r, h int) []float64 {
		for v, x := range s.advanceRef(state, &t[graph.StateScanAtXBC], &t[graph.StateScanAtGates], &t[graph.StateScanAtSkip], r, h) {
			o.Set(r, h*s.p+v, x)
		}
		return state
	})
}
