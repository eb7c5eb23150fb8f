package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// attentionBwdRef: with p = exp(scale*q.k - lse), dp = do.v and
// delta = sum(do*o): ds = p*(dp-delta)*scale, dq = sum(ds*k), dk = sum(ds*q),
// dv = sum(p*do). Where scores are capped, ds also has the cap's slope.
func attentionBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dq, dkv, delta, do := &t[graph.AttentionBwdDQ], &t[graph.AttentionBwdDKV], &t[graph.AttentionBwdDelta], &t[graph.AttentionBwdDO]
	q, kv, o, lse := &t[graph.AttentionBwdQ], &t[graph.AttentionBwdKV], &t[graph.AttentionBwdO], &t[graph.AttentionBwdLSE]
	gq, gkv := make([]float64, q.Rows*q.Cols), make([]float64, kv.Rows*kv.Cols)
	for n := range q.Rows {
		row := kv.Rows - q.Rows + n
		i, base := row%a.Seq, row-row%a.Seq
		v := viewOf(a, base, kv.Rows, q.Rows, optional(t, graph.AttentionBwdStarts))
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
					s += a.Scale * q.At(n, v.q(h)+c) * kv.At(base+j, v.k(g)+c)
					dp += do.At(n, h*v.size+c) * kv.At(base+j, v.v(g)+c)
				}
				s = capped(a, s)
				slope := slopeOf(a, s)
				if coarse(float32(lse.At(n, h))) { // rounded like lse
					s = min(float64(float32(s)), lse.At(n, h))
				}
				p := math.Exp(s - lse.At(n, h))
				ds := p * (dp - d) * a.Scale * slope
				gi, gj := gq[n*q.Cols:], gkv[(base+j)*kv.Cols:]
				for c := range v.size {
					gi[v.q(h)+c] += ds * kv.At(base+j, v.k(g)+c)
					gj[v.k(g)+c] += ds * q.At(n, v.q(h)+c)
					gj[v.v(g)+c] += p * do.At(n, h*v.size+c)
				}
			}
		}
	}
	dq.storeAll(gq, false)
	dkv.storeAll(gkv, a.Acc)
}

// storeAll sets all elements to x, or adds x to them.
func (t *Tensor) storeAll(x []float64, acc bool) {
	for r := range t.Rows {
		for c := range t.Cols {
			v := x[r*t.Cols+c]
			if acc {
				v += t.At(r, c)
			}
			t.Set(r, c, v)
		}
	}
}

// attentionBwd recomputes the probabilities tile by tile from lse. Per sequence and
// key head, the loops are: blocks of queries, last first; query heads of the group;
// blocks of visible keys. So dk and dv are summed in order of query block and head,
// dq in order of keys. Tiles have a row per key and a column per query, as in
// attend. Slices of a sequence, computed last first, continue these sums.
//
// If sequences x key heads are too few to keep the workers busy, the loops are
// split: one task per block of keys for dk and dv, one per block of queries for dq.
// Every sum keeps its order, so no bit changes. The price is that scores and dp are
// computed twice: seven products instead of five.
func attentionBwd(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	rows, queries := t[graph.AttentionBwdKV].Rows, t[graph.AttentionBwdQ].Rows
	heads, workers := (rows+a.Seq-1)/a.Seq*a.KVHeads, e.Pool.Workers()
	if 5*((heads+workers-1)/workers)*workers <= 7*heads {
		c.tasks(heads, func(c *call, w *worker, i int) {
			b := c.attentionTask(i)
			b.sumKeys, b.sumQueries = true, true
			b.run(w)
		})
		return
	}
	c.n[0], c.n[1] = heads, (min(a.Seq, rows)+keyBlock-1)/keyBlock
	c.n[2], c.n[3] = blocks(a, rows, queries)
	c.tasks(heads*(c.n[1]+c.n[3]), func(c *call, w *worker, i int) {
		b := c.attentionTask(i % c.n[0])
		if i /= c.n[0]; i < c.n[1] { // the first keys, seen by the most queries, run first
			b.sumKeys, b.k0 = true, i*keyBlock
			b.k1 = min(b.seq, b.k0+keyBlock)
			seen := (b.k1 + b.window - 2) / b.block // the last block of queries that may see them
			b.q0, b.q1 = max(b.from, b.k0), min(b.seq, (seen+1)*b.block)
		} else { // the last queries, which see the most keys, run first
			block := (c.n[1] + c.n[2] + c.n[3] - 1 - i) * b.block
			b.sumQueries, b.q0, b.q1 = true, max(b.from, block), min(b.seq, block+b.block)
		}
		b.run(w)
	})
}

// attentionTask is a part of the backward pass of key head g in the sequence that
// begins at row base: keys [k0, k1), where k0 begins a block, and queries [q0, q1).
type attentionTask struct {
	*call
	view
	base, g             int
	k0, k1, q0, q1      int
	sumKeys, sumQueries bool        // which gradients to compute: dk and dv, dq
	key, value, dk, dv  gemm.Matrix // of keys [k0, k1)
}

// attentionTask returns the task of all keys and queries of the i-th key head,
// counted over all sequences.
func (c *call) attentionTask(i int) attentionTask {
	b := attentionTask{call: c, base: i / c.a.KVHeads * c.a.Seq, g: i % c.a.KVHeads}
	b.view = viewOf(c.a, b.base, c.t[graph.AttentionBwdKV].Rows, c.t[graph.AttentionBwdQ].Rows, optional(c.t[:], graph.AttentionBwdStarts))
	b.k1, b.q0, b.q1 = b.seq, b.from, b.seq
	return b
}

func (b *attentionTask) run(w *worker) {
	dkv, kv, first, n, s := &b.t[graph.AttentionBwdDKV], &b.t[graph.AttentionBwdKV], b.base+b.k0, b.k1-b.k0, b.size
	if n <= 0 { // the last sequence may be shorter
		return
	}
	b.key, b.value = kv.at(first, b.k(b.g)), kv.at(first, b.v(b.g))
	if b.sumKeys { // each key is read for many blocks of queries
		b.key, b.value = compact(w.tmp(12, n*s), b.key, n, s), compact(w.tmp(13, n*s), b.value, n, s)
		b.dk = w.sumTile(2, dkv, first, n, b.k(b.g), s, b.a.Acc)
		b.dv = w.sumTile(3, dkv, first, n, b.v(b.g), s, b.a.Acc)
	}
	for q1 := b.q1; q1 > b.q0; {
		q0 := max(b.q0, (q1-1)/b.block*b.block)
		if !b.sumQueries && b.first(q0) >= b.k1 { // these queries are in a later document
			q1 = q0
			continue
		}
		for h := b.g * b.group; h < (b.g+1)*b.group; h++ {
			b.attend(w, h, q0, q1-q0)
		}
		q1 = q0
	}
	if b.sumKeys {
		w.storeTile(b.dk, dkv, first, n, b.k(b.g), s)
		w.storeTile(b.dv, dkv, first, n, b.v(b.g), s)
	}
}

// attend processes queries [q0, q0+n) of head h.
func (b *attentionTask) attend(w *worker, h, q0, n int) {
	dq, delta, do := &b.t[graph.AttentionBwdDQ], &b.t[graph.AttentionBwdDelta], &b.t[graph.AttentionBwdDO]
	q, kv, o, lse := &b.t[graph.AttentionBwdQ], &b.t[graph.AttentionBwdKV], &b.t[graph.AttentionBwdO], &b.t[graph.AttentionBwdLSE]
	s, row := b.size, b.base+q0-(kv.Rows-q.Rows)
	query, dout := q.at(row, b.q(h)), do.at(row, h*s)
	stats := w.tmp(6, 2*n)
	plus, deltas, huge := stats[:n], stats[n:], false
	for i := range n {
		deltas[i] = w.v.Dot(w.load(4, do, row+i, h*s, (h+1)*s), w.load(5, o, row+i, h*s, (h+1)*s))
		if b.sumQueries {
			delta.row(row+i, h, h+1)[0] = deltas[i]
		}
		if plus[i] = -lse.row(row+i, h, h+1)[0]; coarse(plus[i]) {
			plus[i], huge = 0, true
		}
	}
	qt, dt := w.transposeQueries(w.tmp(0, n*s), query, n, s), w.transposeQueries(w.tmp(1, n*s), dout, n, s)
	if b.sumKeys {
		query, dout = compact(w.tmp(7, n*s), query, n, s), compact(w.tmp(11, n*s), dout, n, s)
	}
	p, ds := gemm.Matrix{Data: w.tmp(8, n*keyBlock), Stride: n}, gemm.Matrix{Data: w.tmp(9, n*keyBlock), Stride: n}
	sum := w.ownTile(10, dq, row, n, b.q(h), s)
	var init gemm.Init
	for k0, k1 := max(b.k0, b.begin(q0)), 0; k0 < min(b.k1, q0+n); k0 = k1 {
		k1 = blockEnd(k0, q0+n)
		keys := k1 - k0
		key, value := from(b.key, k0-b.k0), from(b.value, k0-b.k0)
		w.scores(key, qt, p, keys, n, s)
		w.scores(value, dt, ds, keys, n, s)
		scale := w.capScores(b.a, p.Data[:keys*n])
		kept := w.keepCapped(b.a, p.Data[:keys*n])
		b.hide(p.Data, q0, n, k0, keys)
		if huge {
			b.level(p.Data[:keys*n], lse, row, h, n)
		}
		w.v.ColExpBwd(plus, deltas, p.Data[:keys*n], ds.Data[:keys*n], scale)
		w.throughCap(b.a, ds.Data[:keys*n], kept, 1, b.a.Scale/b.a.Limit)
		grad := w.rounded(1, ds, keys*n, kv)
		if b.sumKeys {
			dk, dv := from(b.dk, k0-b.k0), from(b.dv, k0-b.k0)
			w.serial.Gemm(gemm.NN, keys, s, n, w.rounded(0, p, keys*n, do), dout, dv, gemm.Init{Residual: dv})
			w.serial.Gemm(gemm.NN, keys, s, n, grad, query, dk, gemm.Init{Residual: dk})
		}
		if b.sumQueries {
			w.serial.Gemm(gemm.TNB, n, s, keys, grad, key, sum, init)
			init.Residual = sum
		}
		b.env.Pool.StepBack()
	}
	if b.sumQueries {
		w.storeTile(sum, dq, row, n, b.q(h), s)
	}
}

// level subtracts the logarithms in lse that are coarse from the scores of a tile, whose n queries begin at the
// given row.
func (b *attentionTask) level(tile []float32, lse *Tensor, row, h, n int) {
	for i := range n {
		if m := lse.row(row+i, h, h+1)[0]; coarse(m) {
			level(tile, i, n, float32(b.a.Scale), m)
		}
	}
}

// sumTile returns memory for n x cols sums, initialised to 0 or, if acc, to what
// the tensor holds.
func (w *worker) sumTile(k int, t *Tensor, r0, n, c0, cols int, acc bool) gemm.Matrix {
	m := w.ownTile(k, t, r0, n, c0, cols)
	for i := range n {
		row := m.Data[i*m.Stride:][:cols]
		switch {
		case !acc:
			clear(row)
		case t.DType != graph.F32:
			w.v.Widen(row, t.row16(r0+i, c0, c0+cols))
		}
	}
	return m
}

// ownTile returns uninitialised memory for n x cols results: the tensor's own or,
// for a bf16 tensor, buffer k.
func (w *worker) ownTile(k int, t *Tensor, r0, n, c0, cols int) gemm.Matrix {
	if t.DType == graph.F32 {
		return gemm.Matrix{Data: t.F32[r0*t.Stride+c0:], Stride: t.Stride}
	}
	return gemm.Matrix{Data: w.tmp(k, n*cols), Stride: cols}
}

// storeTile writes the results in memory from sumTile or ownTile to the tensor.
func (w *worker) storeTile(m gemm.Matrix, t *Tensor, r0, n, c0, cols int) {
	if t.DType == graph.F32 {
		return
	}
	for i := range n {
		w.v.Narrow(t.row16(r0+i, c0, c0+cols), m.Data[i*cols:(i+1)*cols])
	}
}

// put stores x in row r from column c on.
func (w *worker) put(t *Tensor, r, c int, x []float32) {
	if t.DType == graph.F32 {
		copy(t.row(r, c, c+len(x)), x)
	} else {
		w.v.Narrow(t.row16(r, c, c+len(x)), x)
	}
}
