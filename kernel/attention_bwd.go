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
	v := viewOf(a, 0, qkv.Rows)
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

// attentionBwd recomputes the probabilities tile by tile from lse. For a
// sequence and a key head it walks the query heads of the group, for each the
// blocks of queries, for each the blocks of keys that they see: so dk and dv
// are sums in order of head and query, dq in order of keys. Tiles have a row
// per key and a column per query, as in attend.
//
// Where there are fewer sequences x key heads than would keep the workers
// busy, these loops are divided: a task for each block of keys does the part of
// dk and dv, a task for each block of queries the part of dq. The sums are the
// same ones in the same order, so no bit changes; the price is that scores and
// dp are computed twice, seven products for five.
func attentionBwd(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	heads, workers := (t[3].Rows+a.Seq-1)/a.Seq*a.KVHeads, e.Pool.Workers()
	if 5*((heads+workers-1)/workers)*workers <= 7*heads {
		c.tasks(heads, func(c *call, w *worker, i int) {
			b := c.attentionTask(i)
			b.sumKeys, b.sumQueries = true, true
			b.run(w)
		})
		return
	}
	block := viewOf(a, 0, t[3].Rows).block
	c.n = [4]int{heads, (a.Seq + keyBlock - 1) / keyBlock, (a.Seq + block - 1) / block}
	c.tasks(heads*(c.n[1]+c.n[2]), func(c *call, w *worker, i int) {
		b := c.attentionTask(i % c.n[0])
		if i /= c.n[0]; i < c.n[1] { // the first keys are seen by most queries
			b.sumKeys, b.k0 = true, i*keyBlock
			b.k1 = min(b.seq, b.k0+keyBlock)
			b.q0, b.q1 = b.k0/b.block*b.block, min(b.seq, b.k1+b.window-1)
		} else { // the last queries see most keys
			b.sumQueries, b.q0 = true, (c.n[1]+c.n[2]-1-i)*b.block
			b.q1 = min(b.seq, b.q0+b.block)
		}
		b.run(w)
	})
}

// attentionTask is a part of the backward pass of one key head of the sequence
// whose first row is base: the products of keys [k0, k1) and queries [q0, q1),
// both beginning with a block.
type attentionTask struct {
	*call
	view
	base, g             int
	k0, k1, q0, q1      int
	sumKeys, sumQueries bool        // which gradients are wanted
	dk, dv              gemm.Matrix // of keys [k0, k1)
}

// attentionTask makes the task of all keys and queries of the i-th key head.
func (c *call) attentionTask(i int) attentionTask {
	b := attentionTask{call: c, base: i / c.a.KVHeads * c.a.Seq, g: i % c.a.KVHeads}
	b.view = viewOf(c.a, b.base, c.t[3].Rows)
	b.k1, b.q1 = b.seq, b.seq
	return b
}

func (b *attentionTask) run(w *worker) {
	dqkv, first, n, s := &b.t[0], b.base+b.k0, b.k1-b.k0, b.size
	if n <= 0 || b.q0 >= b.q1 { // the last sequence may be shorter
		return
	}
	if b.sumKeys {
		b.dk, b.dv = w.sumTile(2, dqkv, first, n, b.k(b.g), s), w.sumTile(3, dqkv, first, n, b.v(b.g), s)
		for r := range n {
			clear(b.dk.Data[r*b.dk.Stride:][:s])
			clear(b.dv.Data[r*b.dv.Stride:][:s])
		}
	}
	for h := b.g * b.group; h < (b.g+1)*b.group; h++ {
		for q0 := b.q0; q0 < b.q1; q0 += b.block {
			b.attend(w, h, q0)
		}
	}
	if b.sumKeys {
		w.storeTile(b.dk, dqkv, first, n, b.k(b.g), s)
		w.storeTile(b.dv, dqkv, first, n, b.v(b.g), s)
	}
}

// attend does the queries of head h from q0 on.
func (b *attentionTask) attend(w *worker, h, q0 int) {
	dqkv, delta, do, qkv, o, lse := &b.t[0], &b.t[1], &b.t[2], &b.t[3], &b.t[4], &b.t[5]
	s, scale, row := b.size, float32(b.a.Scale), b.base+q0
	n := min(b.block, b.seq-q0)
	q, dout := qkv.at(row, b.q(h)), do.at(row, h*s)
	stats := w.tmp(6, 2*n)
	plus, deltas := stats[:n], stats[n:]
	for i := range n {
		deltas[i] = w.v.Dot(w.load(4, do, row+i, h*s, (h+1)*s), w.load(5, o, row+i, h*s, (h+1)*s))
		if b.sumQueries {
			delta.row(row+i, h, h+1)[0] = deltas[i]
		}
		plus[i] = -lse.row(row+i, h, h+1)[0]
	}
	qt, dt := w.across(0, q, n, s), w.across(1, dout, n, s)
	p, ds := gemm.Matrix{Data: w.tmp(8, n*keyBlock), Stride: n}, gemm.Matrix{Data: w.tmp(9, n*keyBlock), Stride: n}
	dq := w.sumTile(10, dqkv, row, n, b.q(h), s)
	var dqInit gemm.Init
	for k0 := max(b.k0, b.first(q0)/keyBlock*keyBlock); k0 < min(b.k1, q0+n); k0 += keyBlock {
		keys := min(keyBlock, q0+n-k0)
		key, value := qkv.at(b.base+k0, b.k(b.g)), qkv.at(b.base+k0, b.v(b.g))
		w.scores(key, qt, p, keys, n, s)
		w.scores(value, dt, ds, keys, n, s)
		b.hide(p.Data, q0, n, k0, keys)
		w.v.ColExpBwd(plus, deltas, p.Data[:keys*n], ds.Data[:keys*n], scale)
		grad := w.rounded(1, ds, keys*n, qkv)
		if b.sumKeys {
			dk, dv := rowsOf(b.dk, k0-b.k0), rowsOf(b.dv, k0-b.k0)
			w.serial.Gemm(gemm.NN, keys, s, n, w.rounded(0, p, keys*n, do), dout, dv, gemm.Init{Residual: dv})
			w.serial.Gemm(gemm.NN, keys, s, n, grad, q, dk, gemm.Init{Residual: dk})
		}
		if b.sumQueries {
			w.serial.Gemm(gemm.TN, n, s, keys, grad, key, dq, dqInit)
			dqInit.Residual = dq
		}
	}
	if b.sumQueries {
		w.storeTile(dq, dqkv, row, n, b.q(h), s)
	}
}

func rowsOf(m gemm.Matrix, r int) gemm.Matrix {
	return gemm.Matrix{Data: m.Data[r*m.Stride:], Stride: m.Stride}
}

// sumTile gives memory for sums over n rows and cols columns: the tensor's own
// or, for a bf16 tensor, buffer k.
func (w *worker) sumTile(k int, t *Tensor, r0, n, c0, cols int) gemm.Matrix {
	if t.DType == graph.F32 {
		return gemm.Matrix{Data: t.F32[r0*t.Stride+c0:], Stride: t.Stride}
	}
	return gemm.Matrix{Data: w.tmp(k, n*cols), Stride: cols}
}

// storeTile ends what sumTile began.
func (w *worker) storeTile(m gemm.Matrix, t *Tensor, r0, n, c0, cols int) {
	if t.DType == graph.F32 {
		return
	}
	for i := range n {
		w.v.Narrow(t.row16(r0+i, c0, c0+cols), m.Data[i*cols:(i+1)*cols])
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
