package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// DeltaRule in chunks: see graph/delta.go for the equations. A task has a head of a sequence. Everything is float32, in the worker's
// buffers; all sums are chains of package gemm's, or of one thread. So no bit depends on anything but the document.

// lengthEps is what is added to the squared length of queries and keys.
const lengthEps = 1e-6

// deltaShape describes a call.
type deltaShape struct {
	heads, keys, group int // heads of values and of keys; of values for each of keys
	k, v               int // columns of a head
	chunk, seq         int // see graph.DeltaChunk
	keptStates
}

func deltaShapeOf(a *graph.Attr, o *Tensor) deltaShape {
	s := deltaShape{heads: a.Heads, keys: a.KVHeads, group: a.Heads / a.KVHeads, k: a.HeadDim, v: o.Cols / a.Heads, seq: a.Seq}
	s.chunk, s.keptStates = graph.DeltaChunk(a.Seq), keptStates{graph.DeltaKept(a.Seq), graph.DeltaStateCols(a.Seq, s.k*s.v)}
	return s
}

// First columns of heads in qkv.
func (s *deltaShape) query(g int) int { return g * s.k }
func (s *deltaShape) key(g int) int   { return (s.keys + g) * s.k }
func (s *deltaShape) value(h int) int { return 2*s.keys*s.k + h*s.v }

// documentEnd returns the first row after the document that begins at row, at most end.
func documentEnd(starts *Tensor, row, end int) int {
	if starts.Absent() {
		return end
	}
	return nextDocument(starts, row, end)
}

// deltaChunk is what a chunk of n tokens of a head consists of, in a worker's buffers.
type deltaChunk struct {
	deltaShape
	w               *worker
	n               int
	q, key, val     gemm.Matrix // queries and keys have length 1, and queries are divided by the root of k
	lengthQ, length []float32   // by which they were multiplied
	beta, cum       []float32   // how much is taken in; logarithms of what is kept, added up from the chunk's beginning
	grown, rest     []float32   // exp(cum), exp(cum_last - cum)
	pairs           gemm.Matrix // exp(cum_i - cum_j)*k_i.k_j below the diagonal, A without beta
	minus           gemm.Matrix // -A
	seen            gemm.Matrix // P
	decays          gemm.Matrix // exp(cum_i - cum_j) up to the diagonal
	read            gemm.Matrix // K.S
	delta           gemm.Matrix // D
	wide            gemm.Matrix // room for the longer of keys and values
}

// newDeltaChunk divides buffer 0 among the parts of a chunk.
func (w *worker) newDeltaChunk(s deltaShape) deltaChunk {
	c, wide := s.chunk, max(s.k, s.v)
	x := deltaChunk{deltaShape: s, w: w}
	room := w.tmp(0, c*(2*s.k+3*s.v+wide)+4*c*c+6*c)
	vector := func(n int) []float32 {
		part := room[:n:n]
		room = room[n:]
		return part
	}
	matrix := func(cols int) gemm.Matrix { return gemm.Matrix{Data: vector(c * cols), Stride: cols} }
	x.q, x.key, x.val, x.read, x.delta, x.wide = matrix(s.k), matrix(s.k), matrix(s.v), matrix(s.v), matrix(s.v), matrix(wide)
	x.pairs, x.minus, x.seen, x.decays = matrix(c), matrix(c), matrix(c), matrix(c)
	x.lengthQ, x.length, x.beta, x.cum, x.grown, x.rest = vector(c), vector(c), vector(c), vector(c), vector(c), vector(c)
	return x
}

// rowOfMatrix returns n elements of row i.
func rowOfMatrix(m gemm.Matrix, i, n int) []float32 { return m.Data[i*m.Stride:][:n] }

// read copies columns of row r of a tensor.
func (x *deltaChunk) copyRow(dst []float32, t *Tensor, r, lo int) {
	if t.DType == graph.F32 {
		copy(dst, t.row(r, lo, lo+len(dst)))
		return
	}
	x.w.v.Widen(dst, t.row16(r, lo, lo+len(dst)))
}

// unit gives a vector length 1, times scale, and returns by what it multiplied it but for the scale.
func (x *deltaChunk) unit(v []float32, scale float32) float32 {
	by := float32(1 / math.Sqrt(float64(x.w.v.Dot(v, v))+lengthEps))
	x.w.v.Scale(v, by*scale)
	return by
}

// queryScale is what queries of length 1 are multiplied by.
func (s *deltaShape) queryScale() float32 { return float32(1 / math.Sqrt(float64(s.k))) }

// loadKeys loads queries and keys of key head g, of n tokens from row on.
func (x *deltaChunk) loadKeys(qkv *Tensor, row, n, g int) {
	x.n = n
	for i := range n {
		q, key := rowOfMatrix(x.q, i, x.k), rowOfMatrix(x.key, i, x.k)
		x.copyRow(q, qkv, row+i, x.query(g))
		x.copyRow(key, qkv, row+i, x.deltaShape.key(g))
		x.lengthQ[i], x.length[i] = x.unit(q, x.queryScale()), x.unit(key, 1)
	}
}

// loadHead loads values and gates of head h, and computes all that does not depend on the state.
func (x *deltaChunk) loadHead(qkv, gates *Tensor, row, h int) {
	var sum float32
	n := x.n
	for i := range n {
		x.copyRow(rowOfMatrix(x.val, i, x.v), qkv, row+i, x.value(h))
		sum += gates.row(row+i, h, h+1)[0]
		x.cum[i], x.beta[i] = sum, gates.row(row+i, x.heads+h, x.heads+h+1)[0]
	}
	x.w.v.Exp(x.grown[:n], x.cum[:n], x.cum[:n], 1, 0)
	x.w.v.Exp(x.rest[:n], x.cum[:n], x.cum[:n], -1, -sum)
	x.w.serial.Gemm(gemm.NT, n, n, x.k, x.key, x.key, x.pairs, gemm.Init{})
	x.w.serial.Gemm(gemm.NT, n, n, x.k, x.q, x.key, x.seen, gemm.Init{})
	for i := range n {
		decays, pairs, minus, seen := rowOfMatrix(x.decays, i, n), rowOfMatrix(x.pairs, i, n), rowOfMatrix(x.minus, i, n), rowOfMatrix(x.seen, i, n)
		x.w.v.Exp(decays[:i+1], x.cum[:i+1], x.cum[:i+1], -1, -x.cum[i])
		clear(decays[i+1:])
		for j := range i + 1 {
			seen[j] *= decays[j]
			pairs[j] *= decays[j]
			minus[j] = -x.beta[i] * pairs[j]
		}
		clear(seen[i+1:])
		clear(pairs[i:])
		clear(minus[i:])
	}
}

// solve computes D for the state at the chunk's beginning, row by row.
func (x *deltaChunk) solve(state gemm.Matrix) {
	x.w.serial.Gemm(gemm.NN, x.n, x.v, x.k, x.key, state, x.read, gemm.Init{})
	for i := range x.n {
		d, v, read := rowOfMatrix(x.delta, i, x.v), rowOfMatrix(x.val, i, x.v), rowOfMatrix(x.read, i, x.v)
		beta, grown := x.beta[i], x.grown[i]
		for c := range d {
			d[c] = beta * (v[c] - float32(grown*read[c]))
		}
		if i > 0 {
			d := gemm.Matrix{Data: d, Stride: x.v}
			x.w.serial.Gemm(gemm.NN, 1, x.v, i, from(x.minus, i), x.delta, d, gemm.Init{Residual: d})
		}
	}
}

// scaled returns rows of a matrix, each times a factor, in a buffer.
func (x *deltaChunk) scaled(into, m gemm.Matrix, cols int, by []float32) gemm.Matrix {
	into.Stride = cols
	for i := range x.n {
		x.w.v.ScaleTo(rowOfMatrix(into, i, cols), rowOfMatrix(m, i, cols), by[i])
	}
	return into
}

// results writes O.
func (x *deltaChunk) results(o *Tensor, state gemm.Matrix, row, h int) {
	out := x.wide
	out.Stride = x.v
	x.w.serial.Gemm(gemm.NN, x.n, x.v, x.k, x.q, state, out, gemm.Init{})
	x.scaled(out, out, x.v, x.grown)
	x.w.serial.Gemm(gemm.NN, x.n, x.v, x.n, x.seen, x.delta, out, gemm.Init{Residual: out})
	for i := range x.n {
		x.w.put(o, row+i, h*x.v, rowOfMatrix(out, i, x.v))
	}
}

// advance makes the state that at the chunk's end. to may be the same memory.
func (x *deltaChunk) advance(to, state gemm.Matrix) {
	x.w.v.ScaleTo(to.Data[:x.k*x.v], state.Data[:x.k*x.v], x.grown[x.n-1])
	x.w.serial.Gemm(gemm.TN, x.k, x.v, x.n, x.scaled(x.wide, x.key, x.k, x.rest), x.delta, to, gemm.Init{Residual: to})
}

func deltaRule(e *Env, a *graph.Attr, t []Tensor) {
	o := &t[graph.DeltaRuleO]
	e.begin(a, t).tasks(o.Rows/a.Seq*a.Heads, func(c *call, w *worker, i int) {
		s := deltaShapeOf(c.a, &c.t[graph.DeltaRuleO])
		w.deltaRule(c, s, i/s.heads*s.seq, i%s.heads)
	})
}

// deltaRule computes head h of the sequence that begins at row base.
func (w *worker) deltaRule(c *call, s deltaShape, base, h int) {
	o, states, qkv, gates := &c.t[graph.DeltaRuleO], &c.t[graph.DeltaRuleStates], &c.t[graph.DeltaRuleQKV], &c.t[graph.DeltaRuleGates]
	x, state := w.newDeltaChunk(s), gemm.Matrix{Data: w.tmp(1, s.k*s.v), Stride: s.v}
	for first, end := base, 0; first < base+s.seq; first = end {
		end = documentEnd(&c.t[graph.DeltaRuleStarts], first, base+s.seq)
		clear(state.Data)
		last := first // row after the last state that is kept
		for row := first; row < end; row += s.chunk {
			x.loadKeys(qkv, row, min(s.chunk, end-row), h/s.group)
			x.loadHead(qkv, gates, row, h)
			x.solve(state)
			x.results(o, state, row, h)
			x.advance(state, state)
			if next := row + s.chunk; next-last == s.kept && next <= end {
				s.keepState(states, last, h, state.Data)
				last = next
			}
		}
		s.clearStates(states, last, end, h)
		c.env.Pool.StepBack()
	}
}
