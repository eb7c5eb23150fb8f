package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// view finds the parts of an attention operator's operands: H query heads
// share G key and value heads, H/G neighbours each.
type view struct {
	heads, kv, size, group int
	window                 int
	block                  int     // queries of a block
	base                   int     // the first row of the sequence
	seq                    int     // its rows
	from                   int     // its first row that is a query
	starts                 *Tensor // nil: documents begin with their sequence
	past                   int     // rows of the sequence that have no row in starts
}

// viewOf describes the sequence that begins at row base of the rows that have
// keys. The last queries rows of them have queries.
func viewOf(a *graph.Attr, base, rows, queries int, starts *Tensor) view {
	w := a.Window
	if w <= 0 || w > a.Seq {
		w = a.Seq
	}
	return view{
		heads: a.Heads, kv: a.KVHeads, size: a.HeadDim, group: a.Heads / a.KVHeads, window: w, block: graph.SliceUnit(a.Seq),
		base: base, seq: min(a.Seq, rows-base), from: max(0, rows-queries-base), starts: starts, past: rows - queries - base,
	}
}

// Columns at which a head begins: of q (dq, o, do) and of kv (dkv).
func (v *view) q(h int) int { return h * v.size }
func (v *view) k(g int) int { return g * v.size }
func (v *view) v(g int) int { return (v.kv + g) * v.size }

// row is the row of query i.
func (v *view) row(i int) int { return i - v.past }

// first is the first key that query i sees: none before the one that an earlier
// query sees first. Whatever starts holds, it is a key up to its own.
func (v *view) first(i int) int {
	first := max(0, i-v.window+1)
	if v.starts != nil {
		first = max(first, min(i, int(v.starts.I32[v.row(i)*v.starts.Stride])))
	}
	return first
}

// begin is where the walk over the keys that query i and later ones see begins.
func (v *view) begin(i int) int { return v.first(i) &^ (keyUnit - 1) }

// blockEnd is the end of key k's block, or of all keys before key n.
func blockEnd(k, n int) int { return min(k/keyBlock*keyBlock+keyBlock, n) }

// blocks says which blocks of queries a call has: those that lie at multiples
// of block in its sequences, of which there is one if it is not whole.
func blocks(a *graph.Attr, rows, queries int) (first, n int) {
	unit := graph.SliceUnit(a.Seq)
	first = max(0, rows-queries) / unit
	if rows > a.Seq {
		first, rows = 0, a.Seq
	}
	return first, (rows+unit-1)/unit - first
}

// attentionRef: p = softmax(scale*q.k) over the visible keys, o = sum(p*v).
func attentionRef(_ *Env, a *graph.Attr, t []Tensor) {
	o, lse, q, kv := &t[0], &t[1], &t[2], &t[3]
	p := make([]float64, a.Seq)
	for n := range q.Rows {
		row := kv.Rows - q.Rows + n
		i, base := row%a.Seq, row-row%a.Seq
		v := viewOf(a, base, kv.Rows, q.Rows, startsOf(t, 4))
		for h := range v.heads {
			lse.Set(n, h, softmaxRef(a, &v, q, kv, n, base, i, h, p))
			for c := range v.size {
				var s float64
				for j := v.first(i); j <= i; j++ {
					s += p[j] * kv.At(base+j, v.v(h/v.group)+c)
				}
				o.Set(n, h*v.size+c, s)
			}
		}
	}
}

// startsOf is an operand that may be left out, then nil.
func startsOf(t []Tensor, arg int) *Tensor {
	if len(t) <= arg || t[arg].Absent() {
		return nil
	}
	return &t[arg]
}

// softmaxRef fills p with the probabilities of the query in row n, which is at
// position i of its sequence, and returns the logarithm of the denominator.
func softmaxRef(a *graph.Attr, v *view, q, kv *Tensor, n, base, i, h int, p []float64) float64 {
	m, sum := math.Inf(-1), 0.0
	for j := v.first(i); j <= i; j++ {
		p[j] = 0
		for c := range v.size {
			p[j] += a.Scale * q.At(n, v.q(h)+c) * kv.At(base+j, v.k(h/v.group)+c)
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

// attention is flash attention (Dao et al., 2205.14135): per block of queries
// it walks the blocks of keys that they see and keeps, per query, about the
// largest score m so far, the sum l of exp(score-m) and the sum o of
// exp(score-m)*v. When a block raises m, l and o shrink by exp(old m - new m):
//
//	scores 1 3 | 2 4:  block 1: m=3, l = e^-2 + 1
//	                   block 2: m=4, l = l*e^-1 + e^-2 + 1
//
// Scores are made a tile at a time by the matrix product, so only the triangle
// of tiles that has visible keys is computed. Blocks of keys end at fixed
// positions of the sequence, which fixes the order of each query's sums: they
// are the same in whatever slice and block of queries it is. The first block
// begins where its queries' first key is: keys before it would add zeros.
//
// Known weakness: in tiles on the diagonal up to half of the products are
// thrown away, half of all work where the sequence, or a document, is as short as a
// block.
func attention(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	rows, queries := t[3].Rows, t[2].Rows
	sequences := (rows + a.Seq - 1) / a.Seq
	c.n[0] = sequences * a.KVHeads
	first, n := blocks(a, rows, queries)
	// As many blocks to a task as leave each worker several tasks.
	c.n[1], c.n[2], c.n[3] = first, first+n, min(max(1, c.n[0]*n/(4*e.Pool.Workers())), mostBlocks)
	c.tasks((n+c.n[3]-1)/c.n[3]*c.n[0], func(c *call, w *worker, i int) {
		// The last queries see the most keys: the longest tasks come first.
		end, head := c.n[2]-i/c.n[0]*c.n[3], i%c.n[0]
		w.attend(c, head/c.a.KVHeads*c.a.Seq, head%c.a.KVHeads, max(c.n[1], end-c.n[3]), end)
	})
}

const (
	keyBlock = 256        // keys of a block
	keyUnit  = gemm.Block // the first block begins at a multiple

	mostBlocks = 8 // of queries in a task

	// headroom is how far scores may exceed m before m is raised: e^8 times as
	// large terms cost no digits, and with it m is hardly ever raised twice.
	headroom float32 = 8
)

// attend computes blocks [b0, b1) of queries, of all heads that share key head g.
//
// Tiles have a row per key and a column per query. So maxima and sums over
// keys are taken for 16 queries at a time without any sum across a register,
// and no operand of a product has to be rearranged but the queries, once.
//
// Where queries, keys and values are bf16, so are the factors of all products:
// the probabilities are rounded, and the sums stay float32.
//
// Sums over keys are cut at multiples of keyUnit, and sums over queries between blocks, so
// products may be added up by blocks of k (gemm.TNB).
//
// Several blocks of queries go over the keys together, so that they find a block
// of keys in the second-level cache, and the values next to each other.
func (w *worker) attend(c *call, base, g, b0, b1 int) {
	q, kv := &c.t[2], &c.t[3]
	v := viewOf(c.a, base, kv.Rows, q.Rows, startsOf(c.t[:], 4))
	first, end := max(b0*v.block, v.from), min(b1*v.block, v.seq)
	if first >= end { // the last sequence may be shorter
		return
	}
	for h := g * v.group; h < (g+1)*v.group; h++ {
		n := 0
		for q0 := first; q0 < end; n++ {
			q1 := min(q0/v.block*v.block+v.block, end)
			w.queries[n].begin(w, c, &v, n, h, q0, q1)
			q0 = q1
		}
		for k0, k1 := v.begin(first), 0; k0 < end; k0 = k1 {
			k1 = blockEnd(k0, end)
			value := kv.at(base+k0, v.v(g))
			if n > 1 {
				value = compact(w.tmp(5, keyBlock*v.size), value, k1-k0, v.size)
			}
			for i := range n {
				w.queries[i].see(w, c, &v, g, k0, k1, value)
				c.env.Pool.StepBack()
			}
		}
		for i := range n {
			w.queries[i].finish(w, c, &v, h)
		}
	}
}

// queries is a block of queries [q0, q1) of a head on the way over its keys.
type queries struct {
	q0, q1     int
	begun      bool
	query, sum gemm.Matrix
	soft       softmax
}

// begin makes the i-th block of a task.
func (b *queries) begin(w *worker, c *call, v *view, i, h, q0, q1 int) {
	q, n, most := &c.t[2], q1-q0, v.block*v.size
	b.q0, b.q1, b.begun = q0, q1, false
	b.query = w.across(w.tmp(1, mostBlocks*most)[i*most:], q.at(v.row(q0), v.q(h)), n, v.size)
	b.sum = gemm.Matrix{Data: w.tmp(2, mostBlocks*most)[i*most:][:n*v.size], Stride: v.size}
	b.soft = newSoftmax(w.tmp(4, mostBlocks*4*v.block)[i*4*v.block:], n)
}

// see adds what the block sees of keys [k0, k1).
func (b *queries) see(w *worker, c *call, v *view, g, k0, k1 int, value gemm.Matrix) {
	kv, n := &c.t[3], b.q1-b.q0
	skip := max(0, v.begin(b.q0)-k0)
	k0, k1 = k0+skip, min(k1, b.q1)
	if k0 >= k1 {
		return
	}
	keys := k1 - k0
	tile := gemm.Matrix{Data: w.tmp(0, n*keyBlock), Stride: n}
	w.scores(kv.at(v.base+k0, v.k(g)), b.query, tile, keys, n, v.size)
	v.hide(tile.Data, b.q0, n, k0, keys)
	b.soft.add(w.v, tile.Data[:keys*n], float32(c.a.Scale), b.sum.Data)
	var init gemm.Init
	if b.begun {
		init.Residual = b.sum
	}
	b.begun = true
	w.serial.Gemm(gemm.TNB, n, v.size, keys, w.rounded(0, tile, keys*n, kv), from(value, skip), b.sum, init)
}

// finish writes what the block has seen.
func (b *queries) finish(w *worker, c *call, v *view, h int) {
	o, lse, row := &c.t[0], &c.t[1], v.row(b.q0)
	for i := range b.q1 - b.q0 {
		r, scale := b.sum.Data[i*v.size:(i+1)*v.size], 1/b.soft.l[i]
		if o.DType == graph.F32 {
			w.v.ScaleTo(o.row(row+i, h*v.size, (h+1)*v.size), r, scale)
		} else {
			w.v.Half.ScaleTo(o.row16(row+i, h*v.size, (h+1)*v.size), r, scale)
		}
		lse.row(row+i, h, h+1)[0] = b.soft.m[i] + float32(math.Log(float64(b.soft.l[i])))
	}
}

// at is the matrix that begins at element (r, c).
func (t *Tensor) at(r, c int) gemm.Matrix {
	if t.DType == graph.BF16 {
		return gemm.Matrix{Half: t.BF16[r*t.Stride+c:], Stride: t.Stride}
	}
	return gemm.Matrix{Data: t.F32[r*t.Stride+c:], Stride: t.Stride}
}

// from is the matrix from row r on.
func from(m gemm.Matrix, r int) gemm.Matrix {
	if m.Half != nil {
		return gemm.Matrix{Half: m.Half[r*m.Stride:], Stride: m.Stride}
	}
	return gemm.Matrix{Data: m.Data[r*m.Stride:], Stride: m.Stride}
}

// across makes queries (n x s) ready for scores: float32 are transposed into
// t, so that the product has nothing to rearrange; bf16 stay.
func (w *worker) across(t []float32, q gemm.Matrix, n, s int) gemm.Matrix {
	if q.Half != nil {
		return q
	}
	w.v.Transpose(t, q.Data, n, s, q.Stride)
	return gemm.Matrix{Data: t, Stride: n}
}

// compact brings rows of float32 together in t: a product that goes over them
// many times is faster then, since rows of a wide tensor share few sets of the
// first-level cache. bf16 stay, as they are packed anyway.
func compact(t []float32, m gemm.Matrix, rows, cols int) gemm.Matrix {
	if m.Half != nil {
		return m
	}
	for r := range rows {
		copy(t[r*cols:(r+1)*cols], m.Data[r*m.Stride:])
	}
	return gemm.Matrix{Data: t, Stride: cols}
}

// scores multiplies keys with queries that across has made ready.
func (w *worker) scores(key, q, tile gemm.Matrix, keys, n, s int) {
	form := gemm.NN
	if q.Half != nil {
		form = gemm.NT
	}
	w.serial.Gemm(form, keys, n, s, key, q, tile, gemm.Init{})
}

// rounded gives a tile in the type of the tensor that it is multiplied with: as
// it is or as bf16 in buffer k.
func (w *worker) rounded(k int, tile gemm.Matrix, elems int, other *Tensor) gemm.Matrix {
	if other.DType == graph.F32 {
		return tile
	}
	if cap(w.half[k]) < elems {
		w.half[k] = make([]uint16, elems)
	}
	half := w.half[k][:elems]
	w.v.Narrow(half, tile.Data[:elems])
	return gemm.Matrix{Half: half, Stride: tile.Stride}
}

// softmax is the running state of n queries' softmax.
type softmax struct{ m, l, top, plus []float32 }

// newSoftmax makes one that has seen nothing, in x.
func newSoftmax(x []float32, n int) softmax {
	s := softmax{m: x[:n], l: x[n : 2*n], top: x[2*n : 3*n], plus: x[3*n : 4*n]}
	fill(s.m, minusInf)
	clear(s.l)
	return s
}

var minusInf = float32(math.Inf(-1))

// add replaces the scores of a tile by exp(scale*score - m) and adds them to
// l. Where m has to be raised, the rows of sum shrink as l does.
func (s *softmax) add(v *simd.Set, p []float32, scale float32, sum []float32) {
	fill(s.top, minusInf)
	v.ColMax(s.top, p)
	for i, t := range s.top {
		if t *= scale; t > s.m[i]+headroom {
			if s.l[i] > 0 {
				shrink := float32(math.Exp(float64(s.m[i] - t)))
				s.l[i] *= shrink
				width := len(sum) / len(s.l)
				v.Scale(sum[i*width:(i+1)*width], shrink)
			}
			s.m[i] = t
		}
		s.plus[i] = -s.m[i]
		if s.m[i] == minusInf { // a query that saw no key yet: all exponentials are 0
			s.plus[i] = 0
		}
	}
	clear(s.top) // from here on the tile's part of l
	v.ColExp(s.top, s.plus, p, scale)
	v.Add(s.l, s.top, 0)
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}

// hide sets the scores of a tile to -Inf where the query does not see the key.
// The tile has a row for each key from k0 on and a column for each of n
// queries from q0 on.
func (v *view) hide(p []float32, q0, n, k0, keys int) {
	if k0+keys-1 <= q0 && k0 >= v.first(q0+n-1) {
		return
	}
	hi := 0
	for j := range keys {
		row := p[j*n : (j+1)*n]
		lo := min(max(0, k0+j-q0), n)                             // the first query that is not before the key
		for hi = max(lo, hi); hi < n && v.first(q0+hi) <= k0+j; { // and the first that does not reach back to it
			hi++
		}
		fill(row[:lo], minusInf)
		fill(row[hi:], minusInf)
	}
}
