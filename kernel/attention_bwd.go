package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
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

// attentionBwd is the simple version: one task per sequence and key head.
func attentionBwd(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	c.tasks((t[3].Rows+a.Seq-1)/a.Seq*a.KVHeads, func(c *call, w *worker, task int) {
		dqkv, delta, do, qkv, o, lse := &c.t[0], &c.t[1], &c.t[2], &c.t[3], &c.t[4], &c.t[5]
		v := viewOf(c.a)
		g, base := task%v.kv, task/v.kv*v.seq
		rows := min(v.seq, qkv.Rows-base)
		s, scale := v.size, float32(c.a.Scale)
		dk, dv := w.tmp(0, rows*s), w.tmp(1, rows*s)
		clear(dk)
		clear(dv)
		buf := w.tmp(2, 2*rows)
		for i := range rows {
			n, f := base+i, v.first(i)
			p, dp := buf[:i+1-f], buf[rows:rows+i+1-f]
			for h := g * v.group; h < (g+1)*v.group; h++ {
				q := w.load(3, qkv, n, v.q(h), v.q(h)+s)
				d := w.load(4, do, n, h*s, (h+1)*s)
				sum := w.v.Dot(d, w.load(5, o, n, h*s, (h+1)*s))
				delta.row(n, h, h+1)[0] = sum
				for j := range p {
					p[j] = w.v.Dot(q, w.load(5, qkv, base+f+j, v.k(g), v.k(g)+s))
					dp[j] = w.v.Dot(d, w.load(5, qkv, base+f+j, v.v(g), v.v(g)+s))
				}
				w.v.Exp(p, p, scale, lse.row(n, h, h+1)[0])
				dq := w.dest(6, dqkv, n, v.q(h), v.q(h)+s)
				clear(dq)
				for j := range p {
					r := f + j
					ds := p[j] * (dp[j] - sum) * scale
					w.v.Axpy(dq, w.load(5, qkv, base+r, v.k(g), v.k(g)+s), ds)
					w.v.Axpy(dk[r*s:(r+1)*s], q, ds)
					w.v.Axpy(dv[r*s:(r+1)*s], d, p[j])
				}
				w.store(dq, dqkv, n, v.q(h), v.q(h)+s)
			}
		}
		for i := range rows {
			w.put(dqkv, base+i, v.k(g), dk[i*s:(i+1)*s])
			w.put(dqkv, base+i, v.v(g), dv[i*s:(i+1)*s])
		}
	})
}

// put stores x at column c of row r.
func (w *worker) put(t *Tensor, r, c int, x []float32) {
	if t.DType == graph.F32 {
		copy(t.row(r, c, c+len(x)), x)
	} else {
		w.v.Narrow(t.row16(r, c, c+len(x)), x)
	}
}
