package kernel

import "github.com/athanor-llm/athanor/graph"

// RoPE (Su et al., 2104.09864) in the half-split form of Hugging Face: within a
// head, pair (i, i+R/2) of the first R columns is rotated by an angle. Row p of the
// table holds the R/2 cosines and sines for position p. Query and key heads are rotated,
// value heads are not. The derivative rotates back.

func ropeRef(_ *Env, a *graph.Attr, t []Tensor) {
	qkv, table := &t[graph.RoPEQKV], &t[graph.RoPETable]
	half := table.Cols / 2
	for r := range qkv.Rows {
		p := (r + a.Row0) % a.Seq
		for h := range a.Heads + a.KVHeads {
			for i := range half {
				cos, sin := table.At(p, i), table.At(p, half+i)
				if a.Inverse {
					sin = -sin
				}
				j := h*a.HeadDim + i
				x, y := qkv.At(r, j), qkv.At(r, j+half)
				qkv.Set(r, j, x*cos-y*sin)
				qkv.Set(r, j+half, y*cos+x*sin)
			}
		}
	}
}

func rope(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byRows(t[graph.RoPEQKV].Rows, (a.Heads+a.KVHeads)*a.HeadDim, func(c *call, w *worker, b block) { w.rope(c, b, c.a.Row0, c.a.Seq) })
}

// rope rotates the block's rows; row r is at position (r+row0) mod seq.
func (w *worker) rope(c *call, b block, row0, seq int) {
	qkv, n := &c.t[graph.RoPEQKV], c.t[graph.RoPETable].Cols
	sign := float32(1)
	if c.a.Inverse {
		sign = -1
	}
	for r := b.R0; r < b.R1; r++ {
		x := w.load(0, qkv, r, 0, c.cols)
		angles := w.load(1, &c.t[graph.RoPETable], (r+row0)%seq, 0, n)
		for o := 0; o < c.cols; o += c.a.HeadDim {
			w.v.Rotate(x[o:o+n/2], x[o+n/2:o+n], angles[:n/2], angles[n/2:], sign)
		}
		w.store(x, qkv, r, 0, c.cols)
	}
}
