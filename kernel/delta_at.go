package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// ShortConvAt and DeltaRuleAt continue a sequence token by token, whatever the number of tokens of a call, so no division of a text
// into calls changes a bit, nor which other sequences' tokens are in a call: each sequence has a state of its own. A token costs three passes over a state: for a few tokens less than chunks would.

func shortConvAtRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, past, x, w := &t[graph.ShortConvAtY], &t[graph.ShortConvAtPast], &t[graph.ShortConvAtX], &t[graph.ShortConvAtW]
	for r0, end, slot, first := 0, 0, 0, 0; r0 < y.Rows; r0 = end {
		end, slot, first = textOf(&t[graph.ShortConvAtPos], r0, y.Rows)
		keep := w.Cols - 1
		row := func(position int) int { return slot*keep + position%keep }
		for r := r0; r < end; r++ {
			if first < 0 {
				y.clearRow(r)
				continue
			}
			at := first + r - r0
			for c := range y.Cols {
				var z float64
				if bias := optional(t, graph.ShortConvAtBias); bias != nil {
					z = bias.At(0, c)
				}
				for k := range w.Cols {
					switch back := w.Cols - 1 - k; {
					case back == 0:
						z += w.At(c, k) * x.At(r, c)
					case at >= back:
						z += w.At(c, k) * past.At(row(at-back), c)
					}
				}
				past.Set(row(at), c, x.At(r, c))
				s, _ := a.Act.At(z)
				y.Set(r, c, s)
			}
		}
	}
}

func shortConvAt(e *Env, a *graph.Attr, t []Tensor) {
	y := &t[graph.ShortConvAtY]
	e.begin(a, t).blocks(y.Rows, y.Cols, max(1, y.Rows), convBand, func(c *call, w *worker, b block) {
		v := w.convolution(c, graph.ShortConvAtX, graph.ShortConvAtW, graph.ShortConvAtPos, b)
		y, past, keep := &c.t[graph.ShortConvAtY], &c.t[graph.ShortConvAtPast], v.taps-1
		for r := b.R0; r < b.R1; r++ { // a block has all rows
			slot, at := placeOf(&c.t[graph.ShortConvAtPos], r)
			out := w.dest(4, y, r, b.C0, b.C1)
			if at < 0 {
				clear(out)
				w.store(out, y, r, b.C0, b.C1)
				continue
			}
			z := v.begin()
			for k := max(0, keep-at); k < keep; k++ {
				w.v.NormDWR(z, v.tap(k), w.load(5, past, slot*keep+(at+k)%keep, b.C0, b.C1), 1, 0)
			}
			x := w.load(6, v.x, r, b.C0, b.C1)
			w.v.NormDWR(z, v.tap(keep), x, 1, 0)
			w.put(past, slot*keep+at%keep, b.C0, x)
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
	eachStateRef(o, states, &t[graph.DeltaRuleAtPos], s.heads, s.k, func(state []float64, r, h int) []float64 {
		x := s.tokenRef(qkv, gates, r, h)
		state, _ = s.advanceRef(state, &x)
		for c := range s.v {
			var sum float64
			for i := range s.k {
				sum += x.q[i] * state[i*s.v+c]
			}
			o.Set(r, h*s.v+c, sum)
		}
		return state
	})
}

// eachStateRef calls step with each row of a sequence and head, and the head's state of so many rows before the row, which becomes what step
// returns. Rows of o that are idle become 0.
func eachStateRef(o, states, pos *Tensor, heads, rows int, step func(state []float64, r, h int) []float64) {
	for r, end, slot, first := 0, 0, 0, 0; r < o.Rows; r = end {
		end, slot, first = textOf(pos, r, o.Rows)
		if first < 0 {
			for i := r; i < end; i++ {
				o.clearRow(i)
			}
			continue
		}
		for h := range heads {
			top := (slot*heads + h) * rows
			state := make([]float64, rows*states.Cols)
			for i := range state {
				if first > 0 {
					state[i] = states.At(top+i/states.Cols, i%states.Cols)
				}
			}
			for i := r; i < end; i++ {
				state = step(state, i, h)
			}
			for i, x := range state {
				states.Set(top+i/states.Cols, i%states.Cols, x)
			}
		}
	}
}

// stateAt returns head h's state of rows x cols before row r of a call, cleared where a sequence begins, and the end of the rows that follow each other.
// of is false if they are idle, whose results are then 0.
func stateAt(w *worker, o, states, pos *Tensor, r, heads, h, rows int) (state gemm.Matrix, end int, of bool) {
	end, slot, first := textOf(pos, r, o.Rows)
	cols := states.Cols
	if first < 0 {
		zero := w.tmp(3, cols)
		clear(zero)
		for ; r < end; r++ {
			w.put(o, r, h*cols, zero)
		}
		return state, end, false
	}
	state = gemm.Matrix{Data: states.F32[(slot*heads+h)*rows*states.Stride:], Stride: states.Stride}
	if first == 0 {
		for i := range rows {
			clear(rowOfMatrix(state, i, cols))
		}
	}
	return state, end, true
}

func deltaRuleAt(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).tasks(a.Heads, func(c *call, w *worker, h int) {
		o, states, qkv, gates := &c.t[graph.DeltaRuleAtO], &c.t[graph.DeltaRuleAtState], &c.t[graph.DeltaRuleAtQKV], &c.t[graph.DeltaRuleAtGates]
		s := deltaShapeAt(c.a, o)
		x := w.newDeltaChunk(s)
		for r := 0; r < o.Rows; {
			state, end, of := stateAt(w, o, states, &c.t[graph.DeltaRuleAtPos], r, s.heads, h, s.k)
			for ; of && r < end; r++ {
				x.loadKeys(qkv, r, 1, h/s.group)
				x.copyRow(x.val.Data, qkv, r, s.value(h))
				x.step(state, gates.row(r, h, h+1)[0], gates.row(r, s.heads+h, s.heads+h+1)[0])
				w.serial.Gemm(gemm.NN, 1, s.v, s.k, x.q, state, x.read, gemm.Init{})
				w.put(o, r, h*s.v, x.read.Data)
			}
			r = end
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
