package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
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
// result depends on its position, not on how rows were divided among calls.

// cacheOf describes a sequence whose keys and values are in a cache [2*G*C, S]: G heads of C keys, then of C values, of size S.
func cacheOf(a *graph.Attr, kv *Tensor) view {
	v := viewOf(a, 0, 0, 0, nil)
	v.context = kv.Rows / (2 * a.KVHeads)
	if v.window = a.Window; v.window <= 0 {
		v.window = v.context
	}
	return v
}

// Columns of qkv at which the new key and value of head g begin.
func (v *view) newKey(g int) int   { return (v.heads + g) * v.size }
func (v *view) newValue(g int) int { return (v.heads + v.kv + g) * v.size }

func embedAtRef(_ *Env, a *graph.Attr, t []Tensor) {
	at := *a
	at.Row0, at.Seq = int(t[graph.EmbedAtPos].I32[0]), math.MaxInt
	embedRef(nil, &at, t[:4])
}

func embedAt(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byRows(t[graph.EmbedAtX].Rows, t[graph.EmbedAtX].Cols, func(c *call, w *worker, b block) {
		embedAtRows[float32](c, w, b, int(c.t[graph.EmbedAtPos].I32[0]), math.MaxInt)
	})
}

func ropeAtRef(_ *Env, a *graph.Attr, t []Tensor) {
	at := *a
	at.Row0, at.Seq = int(t[graph.RoPEAtPos].I32[0]), t[graph.RoPEAtTable].Rows
	ropeRef(nil, &at, t[:2])
}

func ropeAt(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byRows(t[graph.RoPEAtQKV].Rows, (a.Heads+a.KVHeads)*a.HeadDim, func(c *call, w *worker, b block) {
		w.rope(c, b, int(c.t[graph.RoPEAtPos].I32[0]), c.t[graph.RoPEAtTable].Rows)
	})
}

func attentionAtRef(_ *Env, a *graph.Attr, t []Tensor) {
	o, kv, qkv := &t[graph.AttentionAtO], &t[graph.AttentionAtKV], &t[graph.AttentionAtQKV]
	pos := int(t[graph.AttentionAtPos].I32[0])
	c := cacheOf(a, kv)
	for n := range qkv.Rows {
		for g := range c.kv {
			for i := range c.size {
				kv.Set(g*c.context+pos+n, i, qkv.At(n, c.newKey(g)+i))
				kv.Set((c.kv+g)*c.context+pos+n, i, qkv.At(n, c.newValue(g)+i))
			}
		}
	}
	for n := range qkv.Rows {
		for h := range c.heads {
			c.attendRef(a, o, kv, qkv, optional(t, graph.AttentionAtSinks), n, h, pos+n)
		}
	}
}

// attendRef computes head h of row n, which is at position i.
func (v *view) attendRef(a *graph.Attr, o, kv, qkv, sinks *Tensor, n, h, i int) {
	g, first := h/v.group, v.first(i)
	p := make([]float64, i+1)
	sink := sinkRef(sinks, h)
	top := sink
	for j := first; j <= i; j++ {
		for k := range v.size {
			p[j] += a.Scale * qkv.At(n, v.q(h)+k) * kv.At(g*v.context+j, k)
		}
		top = max(top, p[j])
	}
	sum := math.Exp(sink - top)
	for j := first; j <= i; j++ {
		p[j] = math.Exp(p[j] - top)
		sum += p[j]
	}
	for k := range v.size {
		var s float64
		for j := first; j <= i; j++ {
			s += p[j] / sum * kv.At((v.kv+g)*v.context+j, k)
		}
		o.Set(n, h*v.size+k, s)
	}
}

// attentionAt appends the rows' keys and values to the cache, then does as attention does.
func attentionAt(e *Env, a *graph.Attr, t []Tensor) {
	ops := [...]Tensor{graph.AttentionO: t[graph.AttentionAtO], graph.AttentionQ: t[graph.AttentionAtQKV],
		graph.AttentionKV: t[graph.AttentionAtKV], graph.AttentionSinks: {}} // as those of attention
	if sinks := optional(t, graph.AttentionAtSinks); sinks != nil {
		ops[graph.AttentionSinks] = *sinks
	}
	c, pos := e.begin(a, ops[:]), int(t[graph.AttentionAtPos].I32[0])
	v := viewAt(c, pos)
	c.n[0], c.n[1], c.n[2] = pos, pos/v.block, (v.seq+v.block-1)/v.block
	if t[graph.AttentionAtQKV].Rows == 1 {
		c.tasks(1, func(c *call, w *worker, _ int) { w.remember(c, 0, c.a.KVHeads) })
	} else {
		c.tasks(a.KVHeads, func(c *call, w *worker, g int) { w.remember(c, g, g+1) })
	}
	n := c.n[2] - c.n[1]
	if n == 1 { // then heads are all that can be divided among workers
		c.tasks(a.Heads, func(c *call, w *worker, h int) {
			v := viewAt(c, c.n[0])
			w.attend(c, &v, h, h+1, c.n[1], c.n[2])
		})
		return
	}
	c.n[3] = min(max(1, a.KVHeads*n/(4*e.Pool.Workers())), mostBlocks)
	c.tasks((n+c.n[3]-1)/c.n[3]*a.KVHeads, func(c *call, w *worker, i int) {
		v := viewAt(c, c.n[0])
		end, g := c.n[2]-i/v.kv*c.n[3], i%v.kv
		w.attend(c, &v, g*v.group, (g+1)*v.group, max(c.n[1], end-c.n[3]), end)
	})
}

// viewAt describes the sequence so far, whose last rows have queries, of which the first is at pos.
func viewAt(c *call, pos int) view {
	v := cacheOf(c.a, &c.t[graph.AttentionKV])
	v.block, v.seq, v.from, v.past = graph.SliceUnit(v.context), pos+c.t[graph.AttentionQ].Rows, pos, pos
	return v
}

// remember appends the rows' keys and values of heads [g0, g1) to the cache.
func (w *worker) remember(c *call, g0, g1 int) {
	kv, qkv := &c.t[graph.AttentionKV], &c.t[graph.AttentionQ]
	v := viewAt(c, c.n[0])
	for g := g0; g < g1; g++ {
		for n := range qkv.Rows {
			row, _ := v.key(g, v.from+n)
			w.put(kv, row, 0, w.load(0, qkv, n, v.newKey(g), v.newKey(g)+v.size))
			row, _ = v.value(g, v.from+n)
			w.put(kv, row, 0, w.load(0, qkv, n, v.newValue(g), v.newValue(g)+v.size))
		}
	}
}
