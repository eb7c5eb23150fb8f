package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// attentionBwdRef: with p = exp(scale*q.k - lse), dp = do.v and
// delta = sum(do*o): ds = p*(dp-delta)*scale, dq = sum(ds*k), dk = sum(ds*q),
// dv = sum(p*do).
func attentionBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dqkv, delta, do, qkv, o, lse := &t[0], &t[1], &t[2], &t[3], &t[4], &t[5]
	v := viewOf(a)
	grad := make([]float64, qkv.Rows*qkv.Cols)
	for n := range qkv.Rows {
		i, base := n%a.Seq, n-n%a.Seq
		for h := range v.heads {
			g := h / v.group
			var d float64
			for c := range v.size {
				d += do.At(n, h*v.size+c) * o.At(n, h*v.size+c)
			}
			delta.Set(n, h, d)
			for j := v.first(i); j <= i; j++ {
				var s, dp float64
				for c := range v.size {
					s += a.Scale * qkv.At(n, v.q(h)+c) * qkv.At(base+j, v.k(g)+c)
					dp += do.At(n, h*v.size+c) * qkv.At(base+j, v.v(g)+c)
				}
				p := math.Exp(s - lse.At(n, h))
				ds := p * (dp - d) * a.Scale
				gi, gj := grad[n*qkv.Cols:], grad[(base+j)*qkv.Cols:]
				for c := range v.size {
					gi[v.q(h)+c] += ds * qkv.At(base+j, v.k(g)+c)
					gj[v.k(g)+c] += ds * qkv.At(n, v.q(h)+c)
					gj[v.v(g)+c] += p * do.At(n, h*v.size+c)
				}
			}
		}
	}
	for r := range qkv.Rows {
		for c := range qkv.Cols {
			dqkv.Set(r, c, grad[r*qkv.Cols+c])
		}
	}
}

// attentionBwd recomputes the probabilities tile by tile from lse. A task is a
// sequence and a key head: it walks the blocks of keys, and for each the
// blocks of queries that see it, of one query head after the other. So dk and
// dv of a block are sums in order of head and query, dq of a query in order of
// keys.
//
// Known weakness: there are no more tasks than sequences x key heads. Dividing
// one further would need either other orders of the sums or two more products.
func attentionBwd(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	c.tasks(t[3].Rows/a.Seq*a.KVHeads, func(c *call, w *worker, i int) {
		base, g := i/c.a.KVHeads*c.a.Seq, i%c.a.KVHeads
		v := viewOf(c.a)
		w.deltas(c, &v, base, g)
		dq := w.queryGrads(c, &v, base, g)
		for k0 := 0; k0 < v.seq; k0 += keyBlockBwd {
			w.attendBwd(c, &v, base, g, k0, dq)
		}
		w.storeQueryGrads(c, &v, base, g, dq)
	})
}

const (
	queryBlockBwd = 64
	keyBlockBwd   = 128
)

// deltas computes the row sums of do*o.
func (w *worker) deltas(c *call, v *view, base, g int) {
	delta, do, o := &c.t[1], &c.t[2], &c.t[4]
	for n := base; n < base+v.seq; n++ {
		for h := g * v.group; h < (g+1)*v.group; h++ {
			lo, hi := h*v.size, (h+1)*v.size
			delta.row(n, h, h+1)[0] = w.v.Dot(w.load(0, do, n, lo, hi), w.load(1, o, n, lo, hi))
		}
	}
}

// queryGrads is the matrix of the group's dq, heads side by side: the result's
// own memory or a buffer.
func (w *worker) queryGrads(c *call, v *view, base, g int) gemm.Matrix {
	dqkv, width := &c.t[0], v.group*v.size
	if dqkv.DType == graph.F32 {
		return gemm.Matrix{Data: dqkv.F32[base*dqkv.Stride+v.q(g*v.group):], Stride: dqkv.Stride}
	}
	return gemm.Matrix{Data: w.tmp(10, v.seq*width), Stride: width}
}

func (w *worker) storeQueryGrads(c *call, v *view, base, g int, dq gemm.Matrix) {
	if dqkv := &c.t[0]; dqkv.DType != graph.F32 {
		for i := range v.seq {
			w.put(dqkv, base+i, v.q(g*v.group), dq.Data[i*dq.Stride:(i+1)*dq.Stride])
		}
	}
}

// attendBwd does the block of keys from k0 on.
func (w *worker) attendBwd(c *call, v *view, base, g, k0 int, dq gemm.Matrix) {
	dqkv, delta, do, qkv, lse := &c.t[0], &c.t[1], &c.t[2], &c.t[3], &c.t[5]
	s, scale := v.size, float32(c.a.Scale)
	cols := min(keyBlockBwd, v.seq-k0)
	key, value := w.tile(0, qkv, base+k0, cols, v.k(g), s), w.tile(1, qkv, base+k0, cols, v.v(g), s)
	dk, dv := gemm.Matrix{Data: w.tmp(2, cols*s), Stride: s}, gemm.Matrix{Data: w.tmp(3, cols*s), Stride: s}
	p := gemm.Matrix{Data: w.tmp(4, queryBlockBwd*cols), Stride: cols}
	ds := gemm.Matrix{Data: w.tmp(5, queryBlockBwd*cols), Stride: cols}
	var dkInit, dvInit gemm.Init
	end := min(v.seq, k0+cols+v.window-1) // queries from here on see none of the keys
	for h := g * v.group; h < (g+1)*v.group; h++ {
		for q0 := k0 / queryBlockBwd * queryBlockBwd; q0 < end; q0 += queryBlockBwd {
			n := min(queryBlockBwd, v.seq-q0)
			q, dout := w.tile(6, qkv, base+q0, n, v.q(h), s), w.tile(7, do, base+q0, n, h*s, s)
			w.serial.Gemm(gemm.NT, n, cols, s, q, key, p, gemm.Init{})
			w.serial.Gemm(gemm.NT, n, cols, s, dout, value, ds, gemm.Init{})
			for i := range n {
				pi, di := p.Data[i*cols:(i+1)*cols], ds.Data[i*cols:(i+1)*cols]
				lo, hi := v.visible(q0+i, k0, cols)
				clear(pi[:lo])
				clear(pi[hi:])
				clear(di[:lo])
				clear(di[hi:])
				r := base + q0 + i
				w.v.Exp(pi[lo:hi], pi[lo:hi], scale, lse.row(r, h, h+1)[0])
				w.v.SoftDX(di[lo:hi], pi[lo:hi], di[lo:hi], delta.row(r, h, h+1)[0], scale)
			}
			w.serial.Gemm(gemm.TN, cols, s, n, p, dout, dv, dvInit)
			w.serial.Gemm(gemm.TN, cols, s, n, ds, q, dk, dkInit)
			dvInit.Residual, dkInit.Residual = dv, dk
			grad := gemm.Matrix{Data: dq.Data[q0*dq.Stride+(h-g*v.group)*s:], Stride: dq.Stride}
			var init gemm.Init
			if k0 > v.first(q0)/keyBlockBwd*keyBlockBwd { // not the first keys that the block sees
				init.Residual = grad
			}
			w.serial.Gemm(gemm.NN, n, s, cols, ds, key, grad, init)
		}
	}
	for i := range cols {
		w.put(dqkv, base+k0+i, v.k(g), dk.Data[i*s:(i+1)*s])
		w.put(dqkv, base+k0+i, v.v(g), dv.Data[i*s:(i+1)*s])
	}
}

// put stores x at column c of row r.
func (w *worker) put(t *Tensor, r, c int, x []float32) {
	if t.DType == graph.F32 {
		copy(t.row(r, c, c+len(x)), x)
	} else {
		w.v.Narrow(t.row16(r, c, c+len(x)), x)
	}
}
