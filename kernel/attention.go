package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// view locates one sequence in the operands of attention. H query heads share G key and
// value heads, H/G adjacent ones each.
type view struct {
	heads, kv, size, group int
	window                 int
	block                  int     // queries per block
	base                   int     // the sequence's first row
	seq                    int     // its length in rows
	from                   int     // its first position that has a query
	starts                 *Tensor // nil: one document per sequence
	past                   int     // position minus row number in q and starts
	context                int     // kv is a cache with room for so many keys of each head, see cacheOf; 0: it is none
	cache                  int     // its first row
}

// viewOf describes the sequence that begins at row base of kv, which has the given number
// of rows. Only the last queries rows have queries.
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

// First column of a head in q (dq, o, do) and in kv (dkv).
func (v *view) q(h int) int { return h * v.size }
func (v *view) k(g int) int { return g * v.size }
func (v *view) v(g int) int { return (v.kv + g) * v.size }

// key returns the row and the first column in kv of the key at position i, for key head g.
func (v *view) key(g, i int) (row, col int) {
	if v.context > 0 {
		return v.cache + g*v.context + i, 0
	}
	return v.base + i, v.k(g)
}

// value is like key.
func (v *view) value(g, i int) (row, col int) {
	if v.context > 0 {
		return v.cache + (v.kv+g)*v.context + i, 0
	}
	return v.base + i, v.v(g)
}

// row returns the row of q that holds the query at position i.
func (v *view) row(i int) int { return i - v.past }

// first returns the first key that query i sees. It never decreases with i, and is in [0, i]
// whatever starts holds.
func (v *view) first(i int) int {
	first := max(0, i-v.window+1)
	if v.starts != nil {
		first = max(first, min(i, int(v.starts.I32[v.row(i)*v.starts.Stride])))
	}
	return first
}

// begin returns the first key to visit for query i and later ones: first(i), rounded down
// to keyUnit.
func (v *view) begin(i int) int { return v.first(i) &^ (keyUnit - 1) }

// blockEnd returns the end of the block that holds key k, at most n.
func blockEnd(k, n int) int { return min(k/keyBlock*keyBlock+keyBlock, n) }

// blocks returns the first block of queries of each sequence in a call, and their number.
// Blocks begin at multiples of graph.SliceUnit. A call with fewer queries than keys has
// one sequence.
func blocks(a *graph.Attr, rows, queries int) (first, n int) {
	unit := graph.SliceUnit(a.Seq)
	first = max(0, rows-queries) / unit
	if rows > a.Seq {
		first, rows = 0, a.Seq
	}
	return first, (rows+unit-1)/unit - first
}

// attentionRef: p = softmax(scale*q.k) over the visible keys and, if there is one, the head's
// sink, o = sum(p*v).
func attentionRef(_ *Env, a *graph.Attr, t []Tensor) {
	o, lse, q, kv := &t[graph.AttentionO], &t[graph.AttentionLSE], &t[graph.AttentionQ], &t[graph.AttentionKV]
	p := make([]float64, a.Seq)
	for n := range q.Rows {
		row := kv.Rows - q.Rows + n
		i, base := row%a.Seq, row-row%a.Seq
		v := viewOf(a, base, kv.Rows, q.Rows, optional(t, graph.AttentionStarts))
		for h := range v.heads {
			lse.Set(n, h, softmaxRef(a, &v, q, kv, optional(t, graph.AttentionSinks), query{n, base, i, h}, p))
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

// optional returns the operand arg, or nil if it is absent.
func optional(t []Tensor, arg int) *Tensor {
	if len(t) <= arg || t[arg].Absent() {
		return nil
	}
	return &t[arg]
}

// query is the query of a head in a row, at position i of the sequence that begins at row base of the keys.
type query struct{ row, base, i, head int }

// softmaxRef fills p with the probabilities of a query, and returns the logarithm of the denominator.
func softmaxRef(a *graph.Attr, v *view, q, kv, sinks *Tensor, at query, p []float64) float64 {
	i, h := at.i, at.head
	sink := sinkRef(sinks, h)
	m := sink
	for j := v.first(i); j <= i; j++ {
		p[j] = 0
		for c := range v.size {
			p[j] += a.Scale * q.At(at.row, v.q(h)+c) * kv.At(at.base+j, v.k(h/v.group)+c)
		}
		p[j] = capped(a, p[j])
		m = max(m, p[j])
	}
	sum := math.Exp(sink - m)
	for j := v.first(i); j <= i; j++ {
		p[j] = math.Exp(p[j] - m)
		sum += p[j]
	}
	for j := v.first(i); j <= i; j++ {
		p[j] /= sum
	}
	return m + math.Log(sum)
}

// sinkRef returns a head's sink; without sinks -Inf, whose weight is 0.
func sinkRef(sinks *Tensor, h int) float64 {
	if sinks == nil {
		return math.Inf(-1)
	}
	return sinks.At(0, h)
}

// attention is flash attention (Dao et al., 2205.14135): each block of queries visits the
// blocks of keys that it sees. Per query it keeps a running maximum m of the scores
// (approximate, see headroom), the sum l of exp(score-m) and the sum o of exp(score-m)*v.
// When a block raises m, l and o are scaled by exp(old m - new m):
//
//	scores 1 3 | 2 4:  block 1: m=3, l = e^-2 + 1
//	                   block 2: m=4, l = l*e^-1 + e^-2 + 1
//
// Scores are computed a tile at a time by the matrix product, so only tiles with visible
// keys are computed. Blocks of keys end at fixed positions of the sequence. That fixes the
// order of each query's sums, whatever slice or block of queries it is in. The first block
// of keys begins at the first visible one: earlier keys would add exact zeros.
//
// With a sink, m starts at the head's sink and l at 1: a score before all others, of a key
// without a value.
//
// As long as scores are finite, so are results: see coarse.
//
// Known weakness: tiles on the diagonal waste up to half of their products. That is half
// of all work if sequences, or documents, are as short as a block.
func attention(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	rows, queries := t[graph.AttentionKV].Rows, t[graph.AttentionQ].Rows
	sequences := (rows + a.Seq - 1) / a.Seq
	c.n[0] = sequences * a.KVHeads
	first, n := blocks(a, rows, queries)
	// Group blocks into tasks, but leave each worker several tasks.
	c.n[1], c.n[2], c.n[3] = first, first+n, min(max(1, c.n[0]*n/(4*e.Pool.Workers())), mostBlocks)
	c.tasks((n+c.n[3]-1)/c.n[3]*c.n[0], func(c *call, w *worker, i int) {
		// The last queries see the most keys, so the longest tasks run first.
		end, head := c.n[2]-i/c.n[0]*c.n[3], i%c.n[0]
		v := viewOf(c.a, head/c.a.KVHeads*c.a.Seq, c.t[graph.AttentionKV].Rows, c.t[graph.AttentionQ].Rows, optional(c.t[:], graph.AttentionStarts))
		g := head % v.kv
		w.attend(c, &v, g*v.group, (g+1)*v.group, max(c.n[1], end-c.n[3]), end)
	})
}

const (
	keyBlock = graph.KeyCut // keys per block
	keyUnit  = gemm.Block   // the first visited key is a multiple of it

	mostBlocks = 8 // blocks of queries per task

	// headroom is how far scores may exceed m before m is raised. Terms up to e^8 lose no
	// precision, and m is then hardly ever raised twice.
	headroom float32 = 8
)

// attend computes blocks [b0, b1) of queries for heads [h0, h1), which share their keys.
//
// Tiles have a row per key and a column per query. So maxima and sums over keys need no
// horizontal reduction within a register, and only the queries have to be rearranged for
// the products, once.
//
// If queries, keys and values are bf16, the probabilities are rounded to bf16 too. Sums
// stay float32.
//
// Sums over keys are cut only at multiples of keyUnit, and sums over queries only between
// blocks, so products may be summed in blocks of k (gemm.TNB).
//
// Several blocks of queries share each block of keys, so that the keys stay in the L2
// cache and the values are made contiguous once.
func (w *worker) attend(c *call, v *view, h0, h1, b0, b1 int) {
	kv, g := &c.t[graph.AttentionKV], h0/v.group
	first, end := max(b0*v.block, v.from), min(b1*v.block, v.seq)
	if first >= end { // the last sequence may be shorter
		return
	}
	for h := h0; h < h1; h++ {
		n := 0
		for q0 := first; q0 < end; n++ {
			q1 := min(q0/v.block*v.block+v.block, end)
			w.queries[n].begin(w, c, v, n, h, q0, q1)
			q0 = q1
		}
		for k0, k1 := v.begin(first), 0; k0 < end; k0 = k1 {
			k1 = blockEnd(k0, end)
			row, col := v.key(g, k0)
			key := recallRows(w, c.a, kv, row, col, k1-k0, 0)
			row, col = v.value(g, k0)
			value := recallRows(w, c.a, kv, row, col, k1-k0, 1)
			if n > 1 {
				value = compact(w.tmp(5, keyBlock*v.size), value, k1-k0, v.size)
			}
			for i := range n {
				w.queries[i].see(w, c, v, k0, k1, key, value)
				c.env.Pool.StepBack()
			}
		}
		for i := range n {
			w.queries[i].finish(w, c, v, h)
		}
	}
}

// queries is the state of a block of queries [q0, q1) of a head while it visits the keys.
type queries struct {
	q0, q1     int
	begun      bool
	query, sum gemm.Matrix
	soft       softmax
}

// begin initialises the i-th block of a task.
func (b *queries) begin(w *worker, c *call, v *view, i, h, q0, q1 int) {
	q, n, most := &c.t[graph.AttentionQ], q1-q0, v.block*v.size
	b.q0, b.q1, b.begun = q0, q1, false
	b.query = w.transposeQueries(w.tmp(1, mostBlocks*most)[i*most:], q.at(v.row(q0), v.q(h)), n, v.size)
	b.sum = gemm.Matrix{Data: w.tmp(2, mostBlocks*most)[i*most:][:n*v.size], Stride: v.size}
	b.soft = newSoftmax(w.tmp(4, mostBlocks*4*v.block)[i*4*v.block:], n)
	if sinks := optional(c.t[:], graph.AttentionSinks); sinks != nil {
		b.soft.sink(w.load(3, sinks, 0, h, h+1)[0])
	}
}

// see processes those of keys [k0, k1) that the block sees.
func (b *queries) see(w *worker, c *call, v *view, k0, k1 int, key, value gemm.Matrix) {
	kv, n := &c.t[graph.AttentionKV], b.q1-b.q0
	skip := max(0, v.begin(b.q0)-k0)
	k0, k1 = k0+skip, min(k1, b.q1)
	if k0 >= k1 {
		return
	}
	keys := k1 - k0
	tile := gemm.Matrix{Data: w.tmp(0, n*keyBlock), Stride: n}
	w.scores(from(key, skip), b.query, tile, keys, n, v.size)
	scale := w.capScores(c.a, tile.Data[:keys*n])
	v.hide(tile.Data, b.q0, n, k0, keys)
	var init gemm.Init
	if b.begun {
		init.Residual = b.sum
	}
	b.begun = true
	b.soft.add(w.v, tile.Data[:keys*n], scale, init.Residual.Data)
	weights, form := w.rounded(0, tile, keys*n, kv), gemm.TNB
	if n == 1 { // a vector, which need not be transposed
		weights.Stride, form = keys, gemm.NN
	}
	w.serial.Gemm(form, n, v.size, keys, weights, from(value, skip), b.sum, init)
}

// finish normalises the sums and writes the block's rows of o and, if it is asked for, lse.
func (b *queries) finish(w *worker, c *call, v *view, h int) {
	o, lse, row := &c.t[graph.AttentionO], &c.t[graph.AttentionLSE], v.row(b.q0)
	for i := range b.q1 - b.q0 {
		w.putScaled(o, row+i, h*v.size, b.sum.Data[i*v.size:(i+1)*v.size], 1/b.soft.l[i])
		if lse.Absent() {
			continue
		}
		lse.row(row+i, h, h+1)[0] = b.soft.m[i] + float32(math.Log(float64(b.soft.l[i])))
	}
}

// putScaled writes x times scale to a row, from column c on.
func (w *worker) putScaled(t *Tensor, r, c int, x []float32, scale float32) {
	if t.DType == graph.F32 {
		w.v.ScaleTo(t.row(r, c, c+len(x)), x, scale)
	} else {
		w.v.Half.ScaleTo(t.row16(r, c, c+len(x)), x, scale)
	}
}

// at returns the matrix that begins at element (r, c), sharing t's memory.
func (t *Tensor) at(r, c int) gemm.Matrix {
	if t.DType == graph.BF16 {
		return gemm.Matrix{Half: t.BF16[r*t.Stride+c:], Stride: t.Stride}
	}
	return gemm.Matrix{Data: t.F32[r*t.Stride+c:], Stride: t.Stride}
}

// from returns m from row r on, sharing its memory.
func from(m gemm.Matrix, r int) gemm.Matrix {
	if m.Half != nil {
		return gemm.Matrix{Half: m.Half[r*m.Stride:], Stride: m.Stride}
	}
	return gemm.Matrix{Data: m.Data[r*m.Stride:], Stride: m.Stride}
}

// transposeQueries prepares queries (n x s) for scores. It transposes float32 into t, so that the
// product need not pack them; bf16 are returned as they are.
func (w *worker) transposeQueries(t []float32, q gemm.Matrix, n, s int) gemm.Matrix {
	if q.Half != nil {
		return q
	}
	w.v.Transpose(t, q.Data, n, s, q.Stride)
	return gemm.Matrix{Data: t, Stride: n}
}

// compact copies float32 rows to t without gaps. Products that read them repeatedly are
// then faster, since the rows of a wide tensor map to few sets of the L1 cache. bf16 are
// returned as they are: the product packs them anyway.
func compact(t []float32, m gemm.Matrix, rows, cols int) gemm.Matrix {
	if m.Half != nil || m.Stride == cols {
		return m
	}
	for r := range rows {
		copy(t[r*cols:(r+1)*cols], m.Data[r*m.Stride:])
	}
	return gemm.Matrix{Data: t, Stride: cols}
}

// scores computes tile = keys * queries^T. The queries come from across. A single float32 query is faster on the left.
func (w *worker) scores(key, q, tile gemm.Matrix, keys, n, s int) {
	if n == 1 && q.Half == nil {
		q.Stride, tile.Stride = s, keys
		w.serial.Gemm(gemm.NT, 1, keys, s, q, key, tile, gemm.Init{})
		return
	}
	form := gemm.NN
	if q.Half != nil {
		form = gemm.NT
	}
	w.serial.Gemm(form, keys, n, s, key, q, tile, gemm.Init{})
}

// rounded returns the tile in the type of the tensor that it will be multiplied with:
// unchanged, or as bf16 in buffer k.
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

// newSoftmax returns the initial state for n queries. Its memory is x, 4n elements.
func newSoftmax(x []float32, n int) softmax {
	s := softmax{m: x[:n], l: x[n : 2*n], top: x[2*n : 3*n], plus: x[3*n : 4*n]}
	fill(s.m, minusInf)
	clear(s.l)
	return s
}

// sink starts from the score of a sink.
func (s *softmax) sink(score float32) {
	fill(s.m, score)
	fill(s.l, 1)
}

var minusInf = float32(math.Inf(-1))

// add replaces the scores of a tile by exp(scale*score - m) and adds them to l. Where m
// has to be raised, it scales l and the rows of sum, which is nil before there is one.
func (s *softmax) add(v *simd.Set, p []float32, scale float32, sum []float32) {
	if len(s.m) == 1 {
		s.addRows(v, p, scale, sum)
		return
	}
	fill(s.top, minusInf)
	v.ColMax(s.top, p)
	s.raise(v, scale, sum)
	for i, m := range s.m {
		if coarse(m) {
			level(p, i, len(s.m), scale, m)
		}
	}
	clear(s.top) // from here on top holds the tile's part of l
	v.ColExp(s.top, s.plus, p, scale)
	v.Add(s.l, s.top, 0)
}

// addRows is add for a tile with a row for each query, instead of a column. The bits are the same.
func (s *softmax) addRows(v *simd.Set, p []float32, scale float32, sum []float32) {
	keys := len(p) / len(s.m)
	for i := range s.m {
		s.top[i] = v.Max(p[i*keys : (i+1)*keys])
	}
	s.raise(v, scale, sum)
	for i, m := range s.m {
		row := p[i*keys : (i+1)*keys]
		if coarse(m) {
			level(row, 0, 1, scale, m)
		}
		v.Exp(row, row, row, scale, -s.plus[i])
	}
	sumRows(s.top, p, keys)
	v.Add(s.l, s.top, 0)
}

// raise raises m to what top asks for, and says in plus what exponents begin with.
func (s *softmax) raise(v *simd.Set, scale float32, sum []float32) {
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
		if m := s.m[i]; m == minusInf || coarse(m) { // no visible key yet: all exponentials are 0; or scores are leveled
			s.plus[i] = 0
		}
	}
}

// sumRows sums rows of n elements in the order of ColExp: one by one. Four rows at a time, since each addition waits for
// the one before; where there are fewer, the last one counts as several.
func sumRows(sums, p []float32, n int) {
	for at := 0; at < len(sums); at += 4 {
		row := func(i int) []float32 { return p[min(at+i, len(sums)-1)*n:][:n] }
		p0, p1, p2, p3 := row(0), row(1), row(2), row(3)
		var s0, s1, s2, s3 float32
		for i, x := range p0 {
			s0 += x
			s1 += p1[i]
			s2 += p2[i]
			s3 += p3[i]
		}
		copy(sums[at:], []float32{s0, s1, s2, s3})
	}
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
		for hi = max(lo, hi); hi < n && v.first(q0+hi) <= k0+j; { // the first query that no longer sees the key
			hi++
		}
		fill(row[:lo], minusInf)
		fill(row[hi:], minusInf)
	}
}
