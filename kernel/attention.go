package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// view finds the parts of an attention operator's operands: H query heads
// share G key and value heads, H/G neighbours each.
type view struct {
	seq, heads, kv, size, group int
	window                      int
}

func viewOf(a *graph.Attr) view {
	w := a.Window
	if w <= 0 || w > a.Seq {
		w = a.Seq
	}
	return view{seq: a.Seq, heads: a.Heads, kv: a.KVHeads, size: a.HeadDim, group: a.Heads / a.KVHeads, window: w}
}

// Columns of qkv (and dqkv) at which a head begins.
func (v *view) q(h int) int { return h * v.size }
func (v *view) k(g int) int { return (v.heads + g) * v.size }
func (v *view) v(g int) int { return (v.heads + v.kv + g) * v.size }

// first is the first key that query i sees.
func (v *view) first(i int) int { return max(0, i-v.window+1) }

// attentionRef: p = softmax(scale*q.k) over the visible keys, o = sum(p*v).
func attentionRef(_ *Env, a *graph.Attr, t []Tensor) {
	o, lse, qkv := &t[0], &t[1], &t[2]
	v := viewOf(a)
	p := make([]float64, a.Seq)
	for n := range qkv.Rows {
		i, base := n%a.Seq, n-n%a.Seq
		for h := range v.heads {
			g := h / v.group
			lse.Set(n, h, softmaxRef(a, &v, qkv, base, i, h, p))
			for c := range v.size {
				var s float64
				for j := v.first(i); j <= i; j++ {
					s += p[j] * qkv.At(base+j, v.v(g)+c)
				}
				o.Set(n, h*v.size+c, s)
			}
		}
	}
}

// softmaxRef fills p with query i's probabilities and returns the logarithm of
// the denominator.
func softmaxRef(a *graph.Attr, v *view, qkv *Tensor, base, i, h int, p []float64) float64 {
	m, sum := math.Inf(-1), 0.0
	for j := v.first(i); j <= i; j++ {
		p[j] = 0
		for c := range v.size {
			p[j] += a.Scale * qkv.At(base+i, v.q(h)+c) * qkv.At(base+j, v.k(h/v.group)+c)
		}
		m = max(m, p[j])
	}
	for j := v.first(i); j <= i; j++ {
		p[j] = math.Exp(p[j] - m)
		sum += p[j]
	}
	for j := v.first(i); j <= i; j++ {
		p[j] /= sum
	}
	return m + math.Log(sum)
}

// attention is the simple version: a row of scores per query.
func attention(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	c.byRows(t[2].Rows, t[0].Cols, func(c *call, w *worker, b block) {
		o, lse, qkv := &c.t[0], &c.t[1], &c.t[2]
		v := viewOf(c.a)
		s := w.tmp(3, v.seq)
		for n := b.R0; n < b.R1; n++ {
			i, base := n%v.seq, n-n%v.seq
			out := w.dest(4, o, n, 0, v.heads*v.size)
			clear(out)
			for h := range v.heads {
				g := h / v.group
				q := w.load(1, qkv, n, v.q(h), v.q(h)+v.size)
				p := s[:i+1-v.first(i)]
				for j := range p {
					p[j] = w.v.Dot(q, w.load(2, qkv, base+v.first(i)+j, v.k(g), v.k(g)+v.size))
				}
				scale := float32(c.a.Scale)
				w.v.Scale(p, scale)
				m := w.v.Max(p)
				sum := w.v.Exp(p, p, 1, m)
				oh := out[h*v.size : (h+1)*v.size]
				for j := range p {
					w.v.Axpy(oh, w.load(2, qkv, base+v.first(i)+j, v.v(g), v.v(g)+v.size), p[j]/sum)
				}
				lse.row(n, h, h+1)[0] = m + float32(math.Log(float64(sum)))
			}
			w.store(out, o, n, 0, v.heads*v.size)
		}
	})
}

type attentionScratch struct{}
