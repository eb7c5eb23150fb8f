package kernel

import "github.com/athanor-llm/athanor/graph"

// Keys and values made from latents, see graph.LatentKV: copies of columns, and sums over heads on the way back.

// latentShape has the columns of a head: those that keys of all heads have in common, the others of keys, those of values.
type latentShape struct{ heads, size, turned, plain, value int }

func latentShapeOf(a *graph.Attr, up, turned *Tensor) latentShape {
	s := latentShape{heads: a.KVHeads, size: a.HeadDim, turned: turned.Cols}
	s.plain = s.size - s.turned
	s.value = up.Cols/s.heads - s.plain
	return s
}

func latentKVRef(_ *Env, a *graph.Attr, t []Tensor) {
	kv, up, turned := &t[graph.LatentKVKV], &t[graph.LatentKVUp], &t[graph.LatentKVTurned]
	s := latentShapeOf(a, up, turned)
	for r := range kv.Rows {
		for h := range s.heads {
			key, value, of := h*s.size, (s.heads+h)*s.size, h*(s.plain+s.value)
			for c := range s.size {
				switch {
				case c < s.turned:
					kv.Set(r, key+c, turned.At(r, c))
				default:
					kv.Set(r, key+c, up.At(r, of+c-s.turned))
				}
				kv.Set(r, value+c, 0)
				if c < s.value {
					kv.Set(r, value+c, up.At(r, of+s.plain+c))
				}
			}
		}
	}
}

func latentKV(e *Env, a *graph.Attr, t []Tensor) {
	kv := &t[graph.LatentKVKV]
	e.begin(a, t).byRows(kv.Rows, kv.Cols, func(c *call, w *worker, b block) {
		kv, up, turned := &c.t[graph.LatentKVKV], &c.t[graph.LatentKVUp], &c.t[graph.LatentKVTurned]
		s := latentShapeOf(c.a, up, turned)
		for r := b.R0; r < b.R1; r++ {
			out, from, common := w.dest(0, kv, r, 0, kv.Cols), w.load(1, up, r, 0, up.Cols), w.load(2, turned, r, 0, s.turned)
			for h := range s.heads {
				key, value, of := out[h*s.size:][:s.size], out[(s.heads+h)*s.size:][:s.size], from[h*(s.plain+s.value):]
				copy(key, common)
				copy(key[s.turned:], of[:s.plain])
				copy(value, of[s.plain:][:s.value])
				clear(value[s.value:])
			}
			w.store(out, kv, r, 0, kv.Cols)
		}
	})
}

func latentKVBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dup, dturned, dkv := &t[graph.LatentKVBwdDUp], &t[graph.LatentKVBwdDTurned], &t[graph.LatentKVBwdDKV]
	s := latentShapeOf(a, dup, dturned)
	for r := range dkv.Rows {
		for h := range s.heads {
			key, value, of := h*s.size, (s.heads+h)*s.size, h*(s.plain+s.value)
			for c := range s.plain {
				dup.Set(r, of+c, dkv.At(r, key+s.turned+c))
			}
			for c := range s.value {
				dup.Set(r, of+s.plain+c, dkv.At(r, value+c))
			}
		}
		for c := range s.turned {
			sum := 0.0
			for h := range s.heads {
				sum += dkv.At(r, h*s.size+c)
			}
			dturned.Set(r, c, sum)
		}
	}
}

func latentKVBwd(e *Env, a *graph.Attr, t []Tensor) {
	dkv := &t[graph.LatentKVBwdDKV]
	e.begin(a, t).byRows(dkv.Rows, dkv.Cols, func(c *call, w *worker, b block) {
		dup, dturned, dkv := &c.t[graph.LatentKVBwdDUp], &c.t[graph.LatentKVBwdDTurned], &c.t[graph.LatentKVBwdDKV]
		s := latentShapeOf(c.a, dup, dturned)
		for r := b.R0; r < b.R1; r++ {
			from := w.load(0, dkv, r, 0, dkv.Cols)
			out, sum := w.dest(1, dup, r, 0, dup.Cols), w.dest(2, dturned, r, 0, s.turned)
			clear(sum)
			for h := range s.heads {
				key, value, of := from[h*s.size:][:s.size], from[(s.heads+h)*s.size:][:s.size], out[h*(s.plain+s.value):]
				copy(of[:s.plain], key[s.turned:])
				copy(of[s.plain:][:s.value], value)
				w.v.Add(sum, key[:s.turned], 0)
			}
			w.store(out, dup, r, 0, dup.Cols)
			w.store(sum, dturned, r, 0, s.turned)
		}
	})
}

// HeadCols: of each head the first columns, as many as y has, and zeros if x has fewer.

func headColsRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, x := &t[graph.HeadColsY], &t[graph.HeadColsX]
	to, from := y.Cols/a.Heads, x.Cols/a.Heads
	for r := range y.Rows {
		for c := range y.Cols {
			y.Set(r, c, 0)
			if c%to < from {
				y.Set(r, c, x.At(r, c/to*from+c%to))
			}
		}
	}
}

func headCols(e *Env, a *graph.Attr, t []Tensor) {
	y := &t[graph.HeadColsY]
	e.begin(a, t).byRows(y.Rows, y.Cols, func(c *call, w *worker, b block) {
		y, x := &c.t[graph.HeadColsY], &c.t[graph.HeadColsX]
		to, from := y.Cols/c.a.Heads, x.Cols/c.a.Heads
		for r := b.R0; r < b.R1; r++ {
			out, in := w.dest(0, y, r, 0, y.Cols), w.load(1, x, r, 0, x.Cols)
			for h := range c.a.Heads {
				head := out[h*to:][:to]
				clear(head[copy(head, in[h*from:][:from]):])
			}
			w.store(out, y, r, 0, y.Cols)
		}
	})
}
