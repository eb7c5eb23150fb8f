package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// Noise while training, drawn element by element from a token's key (graph.MaskKey) and the column. Drop: y (+)= x/(1-Rate) or 0.
// Jitter: y += Scale * u, where u is one of the 1<<16 numbers between -1 and 1 that lie symmetrically about 0.
//
// Known weakness: an element at a time, some 2 ns.

func dropRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, x, keys := &t[graph.DropY], &t[graph.DropX], &t[graph.DropKeys]
	for r := range y.Rows {
		key := keys.I32[r*keys.Stride]
		low, high := graph.MaskKey(key, a.Param)
		for c := range y.Cols {
			v := x.At(r, c)
			switch {
			case key == 0:
			case simd.Draws(uint32(c), low, high) < graph.Dropped(a.Rate):
				v = 0
			default:
				v /= 1 - a.Rate
			}
			y.put(a.Acc, r, c, v)
		}
	}
}

func drop(e *Env, a *graph.Attr, t []Tensor) {
	y := &t[graph.DropY]
	e.begin(a, t).byRows(y.Rows, y.Cols, func(c *call, w *worker, b block) {
		y, x, keys := &c.t[graph.DropY], &c.t[graph.DropX], &c.t[graph.DropKeys]
		for r := b.R0; r < b.R1; r++ {
			in := w.load(1, x, r, b.C0, b.C1)
			if key := keys.I32[r*keys.Stride]; key != 0 {
				kept := w.tmp(2, len(in))
				keep(kept, in, c.a, key, b.C0)
				in = kept
			}
			out := w.dest(0, y, r, b.C0, b.C1)
			if c.a.Acc {
				out = w.load(0, y, r, b.C0, b.C1)
				w.v.Add(out, in, 0)
			} else {
				copy(out, in)
			}
			w.store(out, y, r, b.C0, b.C1)
		}
	})
}

// keep computes a row's elements from column first on.
func keep(y, x []float32, a *graph.Attr, key int32, first int) {
	low, high := graph.MaskKey(key, a.Param)
	scale, least := float32(1/(1-a.Rate)), int32(graph.Dropped(a.Rate))
	x = x[:len(y)]
	for i := range y {
		kept := (least - 1 - int32(simd.Draws(uint32(first+i), low, high))) >> 31 // all bits, or none
		y[i] = math.Float32frombits(math.Float32bits(x[i]*scale) & uint32(kept))
	}
}

func jitterRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, keys := &t[graph.JitterY], &t[graph.JitterKeys]
	for r := range y.Rows {
		key := keys.I32[r*keys.Stride]
		if key == 0 {
			continue
		}
		low, high := graph.MaskKey(key, a.Param)
		for c := range y.Cols {
			u := (2*float64(simd.Draws(uint32(c), low, high)) + 1 - 1<<16) / (1 << 16)
			y.Set(r, c, y.At(r, c)+a.Scale*u)
		}
	}
}

func jitter(e *Env, a *graph.Attr, t []Tensor) {
	y := &t[graph.JitterY]
	e.begin(a, t).byRows(y.Rows, y.Cols, func(c *call, w *worker, b block) {
		y, keys := &c.t[graph.JitterY], &c.t[graph.JitterKeys]
		scale := float32(c.a.Scale / (1 << 16))
		for r := b.R0; r < b.R1; r++ {
			key := keys.I32[r*keys.Stride]
			if key == 0 {
				continue
			}
			low, high := graph.MaskKey(key, c.a.Param)
			row := w.load(0, y, r, b.C0, b.C1)
			for i := range row {
				u := float32(2*int32(simd.Draws(uint32(b.C0+i), low, high)) + 1 - 1<<16)
				row[i] += float32(scale * u) // rounded by itself on every machine
			}
			w.store(row, y, r, b.C0, b.C1)
		}
	})
}
