package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// ShortConvAt and DeltaRuleAt continue a sequence token by token, whatever the number of tokens of a call, so no division of a text
// into calls changes a bit. A token costs three passes over a state: for a few tokens less than chunks would.

func shortConvAtRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, past, x, w := &t[graph.ShortConvAtY], &t[graph.ShortConvAtPast], &t[graph.ShortConvAtX], &t[graph.ShortConvAtW]
	first := positionOf(&t[graph.ShortConvAtPos], 0)
	for c := range y.Cols {
		for r := range y.Rows {
			var z float64
			if bias := optional(t, graph.ShortConvAtBias); bias != nil {
				z = bias.At(0, c)
			}
			for k := range w.Cols {
				switch back := w.Cols - 1 - k; {
				case back == 0:
					z += w.At(c, k) * x.At(r, c)
				case first+r >= back:
					z += w.At(c, k) * past.At((first+r-back)%past.Rows, c)
				}
			}
			past.Set((first+r)%past.Rows, c, x.At(r, c))
			s, _ := a.Act.At(z)
			y.Set(r, c, s)
		}
	}
}

func shortConvAt(e *Env, a *graph.Attr, t []Tensor) {
	y := &t[graph.ShortConvAtY]
	e.begin(a, t).blocks(y.Rows, y.Cols, max(1, y.Rows), convBand, func(c *call, w *worker, b block) {
		v := w.convolution(c, graph.ShortConvAtX, graph.ShortConvAtW, graph.ShortConvAtPos, b)
		y, past, first := &c.t[graph.ShortConvAtY], &c.t[graph.ShortConvAtPast], positionOf(&c.t[graph.ShortConvAtPos], 0)
		for r := b.R0; r < b.R1; r++ {
			z := v.begin()
			for k := max(0, v.taps-1-(first+r)); k < v.taps-1; k++ {
				w.v.NormDWR(z, v.tap(k), w.load(5, past, (first+r+k)%past.Rows, b.C0, b.C1), 1, 0)
			}
			x := w.load(6, v.x, r, b.C0, b.C1)
			w.v.NormDWR(z, v.tap(v.taps-1), x, 1, 0)
			w.put(past, (first+r)%past.Rows, b.C0, x)
			out := w.dest(4, y, r, b.C0, b.C1)
			w.v.Act[c.a.Act](out, z)
			w.store(out, y, r, b.C0, b.C1)
		}
	})
}

// deltaShapeAt describes a call of DeltaRuleAt.
func deltaShapeAt(a *graph.Attr, o *Tensor) deltaShape {
	return deltaShape{heads: a.Heads, keys: a.KVHeads, group: a.Heads / a.KVHeads, k: a.HeadDim, v: o.Cols / a.Heads, chunk: 1}
}

func deltaRuleAtRef(_ *Env, a *graph.Attr, t []Tensor) {
	o, states, qkv, gates := &t[graph.DeltaRuleAtO], &t[graph.DeltaRuleAtState], &t[graph.DeltaRuleAtQKV], &t[graph.DeltaRuleAtGates]
	s := deltaShapeAt(a, o)
	for h := range s.heads {
		state := make([]float64, s.k*s.v)
		for i := range state {
			if positionOf(&t[graph.DeltaRuleAtPos], 0) > 0 {
				state[i] = states.At(h*s.k+i/s.v, i%s.v)
			}
		}
		for r := range o.Rows {
			x := s.tokenRef(qkv, gates, r, h)
			state, _ = s.advanceRef(state, &x)
			for c := range s.v {
				var sum float64
				for i := range s.k {
					sum += x.q[i] * state[i*s.v+c]
				}
				o.Set(r, h*s.v+c, sum)
			}
		}
		for i, x := range state {
			states.Set(h*s.k+i/s.v, i%s.v, x)
		}
	}
}

func deltaRuleAt(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).tasks(a.Heads, func(c *call, w *worker, h int) {
		o, states, qkv, gates := &c.t[graph.DeltaRuleAtO], &c.t[graph.DeltaRuleAtState], &c.t[graph.DeltaRuleAtQKV], &c.t[graph.DeltaRuleAtGates]
		s := deltaShapeAt(c.a, o)
		x := w.newDeltaChunk(s)
		state := gemm.Matrix{Data: states.F32[h*s.k*states.Stride:], Stride: states.Stride}
		if positionOf(&c.t[graph.DeltaRuleAtPos], 0) == 0 {
			for i := range s.k {
				clear(rowOfMatrix(state, i, s.v))
			}
		}
		for r := range o.Rows {
			x.loadKeys(qkv, r, 1, h/s.group)
			x.copyRow(x.val.Data, qkv, r, s.value(h))
			x.step(state, gates.row(r, h, h+1)[0], gates.row(r, s.heads+h, s.heads+h+1)[0])
			w.serial.Gemm(gemm.NN, 1, s.v, s.k, x.q, state, x.read, gemm.Init{})
			w.put(o, r, h*s.v, x.read.Data)
		}
	})
}

// step makes the state after a token, of which keep is the logarithm of what is kept.
func (x *deltaChunk) step(state gemm.Matrix, keep, takes float32) {
	kept := float32(math.Exp(float64(keep)))
	x.w.serial.Gemm(gemm.NN, 1, x.v, x.k, x.key, state, x.read, gemm.Init{})
	for c, v := range x.val.Data {
		x.delta.Data[c] = takes * (v - float32(kept*x.read.Data[c]))
	}
	for i := range x.k {
		x.w.v.Scale(rowOfMatrix(state, i, x.v), kept)
	}
	x.w.serial.Gemm(gemm.TN, x.k, x.v, 1, x.key, x.delta, state, gemm.Init{Residual: state})
}
