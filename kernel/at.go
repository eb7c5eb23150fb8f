package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// EmbedAt, RoPEAt and AttentionAt are Embed, RoPE and Attention for incremental
// decoding. The position of the first row is an operand, and attention reads the
// keys and values of earlier rows from a KV cache.
//
// Example: a prompt of 3 tokens, then one token at a time, one head of size S:
//
//	pos 0, rows 3   cache K0 K1 K2 .  V0 V1 V2 .    3 queries see 1, 2, 3 keys
//	pos 3, row 1    cache K0 K1 K2 K3 V0 V1 V2 V3   1 query sees 4 keys
//
// Each head's keys are contiguous, and so are its values, so each head of a query streams
// through its part of the cache once, and a block of queries does so together. A row's
// result depends on its position, not on how rows were divided among calls, nor on other
// sequences' rows in a call.

// placeOf returns where row r of a call is: the number of its sequence among those of the cache, and its position, which is
// negative if the row is idle.
func placeOf(pos *Tensor, r int) (slot, position int) {
	at := 0
	if pos.Rows > 1 {
		at, r = r*pos.Stride, 0
	}
	if pos.Cols > 1 {
		slot = int(pos.I32[at+1])
	}
	return slot, int(pos.I32[at]) + r
}

// positionOf returns the position of row r of a call; that of idle rows is 0.
func positionOf(pos *Tensor, r int) int {
	_, position := placeOf(pos, r)
	return max(0, position)
}

// textOf returns the rows of a call from r on, before row end, that are consecutive tokens of one sequence, and where the first of them is:
// all rows, or one. position is negative if they are idle.
func textOf(pos *Tensor, r, rows int) (end, slot, position int) {
	slot, position = placeOf(pos, r)
	if pos.Rows > 1 {
		rows = r + 1
	}
	return rows, slot, position
}

// cacheOf describes a sequence whose keys and values are in a cache [2*G*C, S], or one of several such caches in kv: G heads
// of C keys, then of C values, of size S.
func cacheOf(a *graph.Attr, kv *Tensor, slot int) view {
	v := viewOf(a, 0, 0, 0, nil)
	v.context = graph.CacheContext(a, kv.Rows)
	v.cache = slot * 2 * v.kv * v.context
	if v.window = a.Window; v.window <= 0 {
		v.window = v.context
	}
	return v
}

// Columns of qkv at which the new key and value of head g begin.
func (v *view) newKey(g int) int   { return (v.heads + g) * v.size }
func (v *view) newValue(g int) int { return (v.heads + v.kv + g) * v.size }

func embedAtRef(_ *Env, a *graph.Attr, t []Tensor) {
	x, tokens := t[graph.EmbedAtX], t[graph.EmbedAtTokens]
	for r := range x.Rows {
		at := *a
		at.Row0, at.Seq = positionOf(&t[graph.EmbedAtPos], r), math.MaxInt
		embedRef(nil, &at, []Tensor{rowOf(x, r), rowOf(tokens, r), t[graph.EmbedAtWTE], t[graph.EmbedAtWPE]})
	}
}

// rowOf returns row r of a tensor.
func rowOf(t Tensor, r int) Tensor {
	t.Rows = 1
	switch at := r * t.Stride; {
	case t.F32 != nil:
		t.F32 = t.F32[at:]
	case t.BF16 != nil:
		t.BF16 = t.BF16[at:]
	case t.I32 != nil:
		t.I32 = t.I32[at:]
	}
	return t
}

func embedAt(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byRows(t[graph.EmbedAtX].Rows, t[graph.EmbedAtX].Cols, func(c *call, w *worker, b block) {
		for pos := &c.t[graph.EmbedAtPos]; b.R0 < b.R1; {
			run, row0 := b.run(pos)
			embedAtRows[float32](c, w, run, row0, math.MaxInt)
			b.R0 = run.R1
		}
	})
}

// run returns the first rows of a block, which are at consecutive positions, row r at position r+row0: all of them, or one.
func (b block) run(pos *Tensor) (run block, row0 int) {
	if pos.Rows > 1 {
		b.R1 = b.R0 + 1
	}
	return b, positionOf(pos, b.R0) - b.R0
}

func ropeAtRef(_ *Env, a *graph.Attr, t []Tensor) {
	for r := range t[graph.RoPEAtQKV].Rows {
		at := *a
		at.Row0, at.Seq = positionOf(&t[graph.RoPEAtPos], r), t[graph.RoPEAtTable].Rows
		ropeRef(nil, &at, []Tensor{rowOf(t[graph.RoPEAtQKV], r), t[graph.RoPEAtTable]})
	}
}

func ropeAt(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byRows(t[graph.RoPEAtQKV].Rows, (a.Heads+a.KVHeads)*a.HeadDim, func(c *call, w *worker, b block) {
		for pos := &c.t[graph.RoPEAtPos]; b.R0 < b.R1; {
			run, row0 := b.run(pos)
			w.rope(c, run, row0, c.t[graph.RoPEAtTable].Rows)
			b.R0 = run.R1
		}
	})
}

func attentionAtRef(_ *Env, a *graph.Attr, t []Tensor) {
	o, kv, qkv, pos := &t[graph.AttentionAtO], &t[graph.AttentionAtKV], &t[graph.AttentionAtQKV], &t[graph.AttentionAtPos]
	for n := range qkv.Rows {
		slot, i := placeOf(pos, n)
		if i < 0 || !remembers(a, qkv) {
			continue
		}
		c, row := cacheOf(a, kv, slot), rowOf(*qkv, n)
		for g := range c.kv {
			r, _ := c.key(g, i)
			keepRef(a, kv, r, &row, c.newKey(g))
			r, _ = c.value(g, i)
			keepRef(a, kv, r, &row, c.newValue(g))
		}
	}
	kv = unpackedCache(a, kv)
	for n := range qkv.Rows {
		slot, i := placeOf(pos, n)
		if i < 0 {
			o.clearRow(n)
			continue
		}
		c := cacheOf(a, kv, slot)
		for h := range c.heads {
			c.attendRef(a, o, kv, qkv, optional(t, graph.AttentionAtSinks), query{row: n, i: i, head: h})
		}
	}
}

// remembers reports whether queries come with keys and values, which go to the cache.
func remembers(a *graph.Attr, qkv *Tensor) bool { return qkv.Cols > a.Heads*a.HeadDim }

// clearRow sets row r to 0.
func (t *Tensor) clearRow(r int) {
	for c := range t.Cols {
		t.Set(r, c, 0)
	}
}

// attendRef computes the result of a query.
func (v *view) attendRef(a *graph.Attr, o, kv, qkv, sinks *Tensor, at query) {
	g, first := at.head/v.group, v.first(at.i)
	p := make([]float64, at.i+1)
	sink := sinkRef(sinks, at.head)
	top := sink
	for j := first; j <= at.i; j++ {
		row, _ := v.key(g, j)
		for k := range v.size {
			p[j] += a.Scale * qkv.At(at.row, v.q(at.head)+k) * kv.At(row, k)
		}
		p[j] = capped(a, p[j])
		top = max(top, p[j])
	}
	sum := math.Exp(sink - top)
	for j := first; j <= at.i; j++ {
		p[j] = math.Exp(p[j] - top)
		sum += p[j]
	}
	for k := range v.size {
		var s float64
		for j := first; j <= at.i; j++ {
			row, _ := v.value(g, j)
			s += p[j] / sum * kv.At(row, k)
		}
		o.Set(at.row, at.head*v.size+k, s)
	}
}

// placesAt is the operand of a call with positions, after those of attention.
const placesAt = 8

// attentionAt appends the rows' keys and values to the cache, then does as attention does.
func attentionAt(e *Env, a *graph.Attr, t []Tensor) {
	ops := [...]Tensor{graph.AttentionO: t[graph.AttentionAtO], graph.AttentionQ: t[graph.AttentionAtQKV],
		graph.AttentionKV: t[graph.AttentionAtKV], graph.AttentionSinks: {}, placesAt: t[graph.AttentionAtPos]} // as those of attention
	if sinks := optional(t, graph.AttentionAtSinks); sinks != nil {
		ops[graph.AttentionSinks] = *sinks
	}
	c := e.begin(a, ops[:])
	if ops[graph.AttentionQ].Rows == 1 || ops[placesAt].Rows > 1 {
		c.attendEach()
		return
	}
	v := viewAt(c, 0, t[graph.AttentionAtQKV].Rows)
	c.n[1], c.n[2] = v.from/v.block, (v.seq+v.block-1)/v.block
	if remembers(a, &t[graph.AttentionAtQKV]) {
		c.tasks(a.KVHeads, func(c *call, w *worker, g int) { w.remember(c, 0, c.t[graph.AttentionQ].Rows, g, g+1) })
	}
	n := c.n[2] - c.n[1]
	if n == 1 { // then heads are all that can be divided among workers
		c.tasks(a.Heads, func(c *call, w *worker, h int) {
			v := viewAt(c, 0, c.t[graph.AttentionQ].Rows)
			w.attend(c, &v, h, h+1, c.n[1], c.n[2])
		})
		return
	}
	c.n[3] = min(max(1, a.KVHeads*n/(4*e.Pool.Workers())), mostBlocks)
	c.tasks((n+c.n[3]-1)/c.n[3]*a.KVHeads, func(c *call, w *worker, i int) {
		v := viewAt(c, 0, c.t[graph.AttentionQ].Rows)
		end, g := c.n[2]-i/v.kv*c.n[3], i%v.kv
		w.attend(c, &v, g*v.group, (g+1)*v.group, max(c.n[1], end-c.n[3]), end)
	})
}

// attendEach is attentionAt for rows of which each has a place of its own, or a single one. All keys and values are in
// the caches before any query looks, so rows of one sequence see each other. A task has a row, or, where workers would be
// idle, some of its heads: n[0] is the number of tasks of a row, n[1] of those that fill the caches, n[2] of workers.
func (c *call) attendEach() {
	rows, workers, heads := c.t[graph.AttentionQ].Rows, c.env.Pool.Workers(), c.a.KVHeads
	c.n = [4]int{heads * min(c.a.Heads/heads, (workers+rows*heads-1)/(rows*heads)), 1, workers}
	if rows >= 8*workers {
		c.n = [4]int{1, heads, workers}
	}
	if remembers(c.a, &c.t[graph.AttentionQ]) {
		c.tasks(c.n[1], func(c *call, w *worker, i int) {
			for r := range c.t[graph.AttentionQ].Rows {
				if _, position := placeOf(&c.t[placesAt], r); position >= 0 {
					w.remember(c, r, 1, i*c.a.KVHeads/c.n[1], (i+1)*c.a.KVHeads/c.n[1])
				}
			}
		})
	}
	c.tasks(rows*c.n[0], func(c *call, w *worker, i int) {
		r, h0, h1 := c.headsOf(i)
		if _, position := placeOf(&c.t[placesAt], r); position < 0 {
			o := &c.t[graph.AttentionO]
			zero := w.dest(0, o, r, h0*c.a.HeadDim, h1*c.a.HeadDim)
			clear(zero)
			w.store(zero, o, r, h0*c.a.HeadDim, h1*c.a.HeadDim)
			return
		}
		v := viewAt(c, r, 1)
		for h := h0; h < h1; {
			end, next := min(h1, (h/v.group+1)*v.group), -1
			if end < h1 {
				next, _ = v.key(end/v.group, v.begin(v.from))
			} else {
				next = c.firstKey(i + c.n[2]) // likely this worker's next task
			}
			w.attendOne(c, &v, h, end, next)
			h = end
		}
	})
}

// headsOf returns the row and the heads of the i-th task of attendEach. Heads of several tasks of a row share their keys.
func (c *call) headsOf(i int) (r, h0, h1 int) {
	if c.n[0] == 1 {
		return i, 0, c.a.Heads
	}
	parts, group := c.n[0]/c.a.KVHeads, c.a.Heads/c.a.KVHeads
	g, part := i%c.n[0]/parts, i%parts
	return i / c.n[0], g*group + part*group/parts, g*group + (part+1)*group/parts
}

// firstKey returns the row of the cache with the first key that the i-th task of attendEach visits, or -1 if there is none.
func (c *call) firstKey(i int) int {
	if i >= c.t[graph.AttentionQ].Rows*c.n[0] {
		return -1
	}
	r, h, _ := c.headsOf(i)
	if _, position := placeOf(&c.t[placesAt], r); position < 0 {
		return -1
	}
	v := viewAt(c, r, 1)
	row, _ := v.key(h/v.group, v.begin(v.from))
	return row
}

// attendOne computes the one query of heads [h0, h1), which share keys. It does what attend does with a block of
// queries, but reads keys and values once for all heads; the scores of a head are a row.
//
// A short sequence's keys are read at the speed of memory only if they are asked for early: values while scores are
// computed, and the keys that come next, from row next of the cache on, while values are added. Scores of some keys that
// the query does not see yet are computed too, as in attend, to fill the product's last columns.
func (w *worker) attendOne(c *call, v *view, h0, h1, next int) {
	q, kv, o := &c.t[graph.AttentionQ], &c.t[graph.AttentionKV], &c.t[graph.AttentionO]
	i, n, size, row, g := v.from, h1-h0, v.size, v.row(v.from), h0/v.group
	query := q.at(row, v.q(h0))
	query.Stride = size
	sum := gemm.Matrix{Data: w.tmp(2, n*size), Stride: size}
	soft := newSoftmax(w.tmp(4, 4*n), n)
	if sinks := optional(c.t[:], graph.AttentionSinks); sinks != nil {
		copy(soft.m, w.load(3, sinks, 0, h0, h1))
		fill(soft.l, 1)
	}
	var init gemm.Init
	for k0, k1 := v.begin(i), 0; k0 <= i; k0 = k1 {
		k1 = blockEnd(k0, i+1)
		keys, width := k1-k0, v.scored(c.a, k0, k1)
		key, col := v.key(g, k0)
		value, _ := v.value(g, k0)
		fetchRows(w.v, c.a, kv, value, keys)
		tile := gemm.Matrix{Data: w.tmp(0, n*keyBlock)[:n*width], Stride: width}
		w.serial.Gemm(gemm.NT, n, width, size, query, recallRows(w, c.a, kv, key, col, width, 0), tile, gemm.Init{})
		scale := w.capScores(c.a, tile.Data)
		for h := range n {
			scores := tile.Data[h*width:][:width]
			fill(scores[:max(0, v.first(i)-k0)], minusInf)
			fill(scores[keys:], minusInf)
		}
		soft.addRows(w.v, tile.Data, scale, init.Residual.Data)
		if k1 <= i {
			fetchRows(w.v, c.a, kv, key+keys, keys)
		} else {
			fetchRows(w.v, c.a, kv, next, keys)
		}
		w.serial.Gemm(gemm.NN, n, size, keys, w.rounded(0, tile, n*width, kv), recallRows(w, c.a, kv, value, col, keys, 1), sum, init)
		init.Residual = sum
	}
	for h := range n {
		w.putScaled(o, row, (h0+h)*size, sum.Data[h*size:(h+1)*size], 1/soft.l[h])
	}
}

// scored returns the number of keys from k0 on whose scores are computed, where a query sees those before k1: in a cache of
// numbers they fill the strips of a product.
func (v *view) scored(a *graph.Attr, k0, k1 int) int {
	const strip = 16
	if a.CacheBits != 0 {
		return k1 - k0
	}
	return min((k1-k0+strip-1)/strip*strip, v.context-k0)
}

// fetchRows prefetches n rows from row r on of a cache of numbers, if there are so many.
func fetchRows(s *simd.Set, a *graph.Attr, kv *Tensor, r, n int) {
	switch {
	case r < 0 || r+n > kv.Rows || a.CacheBits != 0:
	case kv.DType == graph.BF16:
		s.Half.Fetch(kv.BF16[r*kv.Stride:][:n*kv.Cols])
	default:
		s.Fetch(kv.F32[r*kv.Stride:][:n*kv.Cols])
	}
}

// viewAt describes the sequence of rows [first, first+rows) so far, whose last rows these are: all rows of a call, or one.
func viewAt(c *call, first, rows int) view {
	slot, pos := placeOf(&c.t[placesAt], first)
	v := cacheOf(c.a, &c.t[graph.AttentionKV], slot)
	v.block, v.seq, v.from, v.past = graph.SliceUnit(v.context), pos+rows, pos, pos-first
	return v
}

// remember appends keys and values of rows [first, first+rows), of heads [g0, g1), to the cache.
func (w *worker) remember(c *call, first, rows, g0, g1 int) {
	kv, qkv := &c.t[graph.AttentionKV], &c.t[graph.AttentionQ]
	v := viewAt(c, first, rows)
	for g := g0; g < g1; g++ {
		for n := range rows {
			row, _ := v.key(g, v.from+n)
			keepRow(w, c.a, kv, row, w.load(0, qkv, first+n, v.newKey(g), v.newKey(g)+v.size))
			row, _ = v.value(g, v.from+n)
			keepRow(w, c.a, kv, row, w.load(0, qkv, first+n, v.newValue(g), v.newValue(g)+v.size))
		}
	}
}
