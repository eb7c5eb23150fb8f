package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
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
// Each head's keys are contiguous, and so are its values, so a query streams
// through its part of the cache once. A row's result depends on its position, not
// on how rows were divided among calls.
//
// Known weakness: every query reads the cache separately. That costs nothing for a
// single query, and attention is a small part of the work when a long prompt is
// read a few dozen rows at a time.

// cache locates the rows of a kv operand [2*G*C, S]: G heads of C keys, then of C
// values, of size S.
type cache struct {
	view
	context int // C
}

func cacheOf(a *graph.Attr, kv *Tensor) cache {
	c := cache{viewOf(a, 0, 0, 0, nil), kv.Rows / (2 * a.KVHeads)}
	if c.window = a.Window; c.window <= 0 {
		c.window = c.context
	}
	return c
}

// Columns of qkv at which the new key and value of head g begin.
func (c *cache) newKey(g int) int   { return (c.heads + g) * c.size }
func (c *cache) newValue(g int) int { return (c.heads + c.kv + g) * c.size }

// Rows of the cache at which the keys and values of head g begin.
func (c *cache) keys(g int) int   { return g * c.context }
func (c *cache) values(g int) int { return (c.kv + g) * c.context }

func embedAtRef(_ *Env, a *graph.Attr, t []Tensor) {
	at := *a
	at.Row0, at.Seq = int(t[4].I32[0]), math.MaxInt
	embedRef(nil, &at, t[:4])
}

func embedAt(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byRows(t[0].Rows, t[0].Cols, func(c *call, w *worker, b block) {
		embedAtRows[float32](c, w, b, int(c.t[4].I32[0]), math.MaxInt)
	})
}

func ropeAtRef(_ *Env, a *graph.Attr, t []Tensor) {
	at := *a
	at.Row0, at.Seq = int(t[2].I32[0]), t[1].Rows
	ropeRef(nil, &at, t[:2])
}

func ropeAt(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byRows(t[0].Rows, (a.Heads+a.KVHeads)*a.HeadDim, func(c *call, w *worker, b block) {
		w.rope(c, b, int(c.t[2].I32[0]), c.t[1].Rows)
	})
}

func attentionAtRef(_ *Env, a *graph.Attr, t []Tensor) {
	o, kv, qkv, pos := &t[0], &t[1], &t[2], int(t[3].I32[0])
	c := cacheOf(a, kv)
	for n := range qkv.Rows {
		for g := range c.kv {
			for i := range c.size {
				kv.Set(c.keys(g)+pos+n, i, qkv.At(n, c.newKey(g)+i))
				kv.Set(c.values(g)+pos+n, i, qkv.At(n, c.newValue(g)+i))
			}
		}
	}
	for n := range qkv.Rows {
		for h := range c.heads {
			c.attendRef(a, o, kv, qkv, optional(t, 4), n, h, pos+n)
		}
	}
}

// attendRef computes head h of row n, which is at position i.
func (c *cache) attendRef(a *graph.Attr, o, kv, qkv, sinks *Tensor, n, h, i int) {
	g, first := h/c.group, c.first(i)
	p := make([]float64, i+1)
	sink := sinkRef(sinks, h)
	top := sink
	for j := first; j <= i; j++ {
		for k := range c.size {
			p[j] += a.Scale * qkv.At(n, c.q(h)+k) * kv.At(c.keys(g)+j, k)
		}
		top = max(top, p[j])
	}
	sum := math.Exp(sink - top)
	for j := first; j <= i; j++ {
		p[j] = math.Exp(p[j] - top)
		sum += p[j]
	}
	for k := range c.size {
		var s float64
		for j := first; j <= i; j++ {
			s += p[j] / sum * kv.At(c.values(g)+j, k)
		}
		o.Set(n, h*c.size+k, s)
	}
}

func attentionAt(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	c.tasks(1, func(c *call, w *worker, _ int) { w.remember(c) }) // a few kilobytes per row
	c.tasks(t[2].Rows*a.Heads, func(c *call, w *worker, i int) {
		rows := c.t[2].Rows
		w.recall(c, i%rows, i/rows)
	})
}

// remember appends the rows' keys and values to the cache.
func (w *worker) remember(c *call) {
	kv, qkv, pos := &c.t[1], &c.t[2], int(c.t[3].I32[0])
	cache := cacheOf(c.a, kv)
	for n := range qkv.Rows {
		for g := range cache.kv {
			w.put(kv, cache.keys(g)+pos+n, 0, w.load(0, qkv, n, cache.newKey(g), cache.newKey(g)+cache.size))
			w.put(kv, cache.values(g)+pos+n, 0, w.load(0, qkv, n, cache.newValue(g), cache.newValue(g)+cache.size))
		}
	}
}

// recall computes head h of row n: the scores of all keys that it sees, their
// softmax, and the product with the values.
func (w *worker) recall(c *call, n, h int) {
	o, kv, qkv := &c.t[0], &c.t[1], &c.t[2]
	cache := cacheOf(c.a, kv)
	g, s := h/cache.group, cache.size
	last := int(c.t[3].I32[0]) + n
	first := cache.first(last)
	q := w.load(0, qkv, n, cache.q(h), cache.q(h)+s)
	p := w.tmp(1, last+1-first)
	for j := range p {
		p[j] = w.v.Dot(q, w.load(2, kv, cache.keys(g)+first+j, 0, s))
	}
	scale := float32(c.a.Scale)
	m, sunk := scale*w.v.Max(p), float32(0) // sunk is the weight of the sink
	if sinks := optional(c.t[:], 4); sinks != nil {
		sink := w.load(4, sinks, 0, h, h+1)[0]
		m = max(m, sink)
		sunk = float32(math.Exp(float64(sink - m)))
	}
	if coarse(m) {
		level(p, 0, 1, scale, m)
		m = 0
	}
	sum := w.v.Exp(p, p, p, scale, m) + sunk
	out := w.tmp(3, s)
	w.serial.Gemm(gemm.NN, 1, s, len(p), gemm.Matrix{Data: p, Stride: len(p)}, kv.at(cache.values(g)+first, 0), gemm.Matrix{Data: out, Stride: s}, gemm.Init{})
	w.v.Scale(out, 1/sum)
	w.put(o, n, h*s, out)
}
