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
	seq                    int     // rows of the sequence
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
		seq: min(a.Seq, rows-base), from: max(0, rows-queries-base), starts: starts, past: rows - queries - base,
	}
}

// Columns at which a head begins: of q (dq, o, do) and of kv (dkv).
func (v *view) q(h int) int { return h * v.size }
func (v *view) k(g int) int { return g * v.size }
func (v *view) v(g int) int { return (v.kv + g) * v.size }

// first is the first key that query i sees: none before the one that an earlier
// query sees first. Whatever starts holds, it is a key up to its own.
func (v *view) first(i int) int {
	first := max(0, i-v.window+1)
	if v.starts != nil {
		first = max(first, min(i, int(v.starts.I32[(i-v.past)*v.starts.Stride])))
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
	c.n[1], c.n[2] = blocks(a, rows, queries)
	c.tasks(c.n[2]*c.n[0], func(c *call, w *worker, i int) {
		// The last queries see the most keys: the longest tasks come first.
		block, head := c.n[1]+c.n[2]-1-i/c.n[0], i%c.n[0]
		w.attend(c, head/c.a.KVHeads*c.a.Seq, head%c.a.KVHeads, block)
	})
}

const (
	keyBlock = 256 // keys of a block
	keyUnit  = 16  // the first block begins at a multiple

	// headroom is how far scores may exceed m before m is raised: e^8 times as
	// large terms cost no digits, and with it m is hardly ever raised twice.
	headroom float32 = 8
)

// attend computes a block of queries, of all heads that share key head g.
//
// Tiles have a row per key and a column per query. So maxima and sums over
// keys are taken for 16 queries at a time without any sum across a register,
// and no operand of a product has to be rearranged but the queries, once.
//
// Where queries, keys and values are bf16, so are the factors of all products:
// the probabilities are rounded, and the sums stay float32.
func (w *worker) attend(c *call, base, g, block int) {
	o, lse, q, kv := &c.t[0], &c.t[1], &c.t[2], &c.t[3]
	v, s, scale := viewOf(c.a, base, kv.Rows, q.Rows, startsOf(c.t[:], 4)), c.a.HeadDim, float32(c.a.Scale)
	q0 := max(block*v.block, v.from)
	n := min((block+1)*v.block, v.seq) - q0
	if n <= 0 { // the last sequence may be shorter
		return
	}
	row := base + q0 - (kv.Rows - q.Rows)
	soft := w.softmax(n)
	tile := gemm.Matrix{Data: w.tmp(0, n*keyBlock), Stride: n}
	sum := gemm.Matrix{Data: w.tmp(2, n*s), Stride: s}
	for h := g * v.group; h < (g+1)*v.group; h++ {
		query := w.across(1, q.at(row, v.q(h)), n, s)
		soft.begin()
		var init gemm.Init
		for k0, k1 := v.begin(q0), 0; k0 < q0+n; k0 = k1 {
			k1 = blockEnd(k0, q0+n)
			keys := k1 - k0
			w.scores(kv.at(base+k0, v.k(g)), query, tile, keys, n, s)
			v.hide(tile.Data, q0, n, k0, keys)
			soft.add(w.v, tile.Data[:keys*n], scale, sum.Data)
			w.serial.Gemm(gemm.TN, n, s, keys, w.rounded(0, tile, keys*n, kv), kv.at(base+k0, v.v(g)), sum, init)
			init.Residual = sum
			c.env.Pool.StepBack()
		}
		for i := range n {
			r := sum.Data[i*s : (i+1)*s]
			w.v.Scale(r, 1/soft.l[i])
			w.put(o, row+i, h*s, r)
			lse.row(row+i, h, h+1)[0] = soft.m[i] + float32(math.Log(float64(soft.l[i])))
		}
	}
}

// at is the matrix that begins at element (r, c).
func (t *Tensor) at(r, c int) gemm.Matrix {
	if t.DType == graph.BF16 {
		return gemm.Matrix{Half: t.BF16[r*t.Stride+c:], Stride: t.Stride}
	}
	return gemm.Matrix{Data: t.F32[r*t.Stride+c:], Stride: t.Stride}
}

// across makes queries (n x s) ready for scores: float32 are transposed into
// buffer k, so that the product has nothing to rearrange; bf16 stay.
func (w *worker) across(k int, q gemm.Matrix, n, s int) gemm.Matrix {
	if q.Half != nil {
		return q
	}
	t := w.tmp(k, n*s)
	w.v.Transpose(t, q.Data, n, s, q.Stride)
	return gemm.Matrix{Data: t, Stride: n}
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

func (w *worker) softmax(n int) softmax {
	x := w.tmp(4, 4*n)
	return softmax{m: x[:n], l: x[n : 2*n], top: x[2*n : 3*n], plus: x[3*n:]}
}

var minusInf = float32(math.Inf(-1))

func (s *softmax) begin() {
	fill(s.m, minusInf)
	clear(s.l)
}

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
