package kernel

import (
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// deltaGrads is what the backward pass of a chunk computes besides what deltaChunk has, in a worker's buffers.
type deltaGrads struct {
	dq, dkey      gemm.Matrix // of queries and keys of length 1, summed over the heads of the group
	do, ddelta    gemm.Matrix // of results and of D; then of beta*(v - exp(cum)*read)
	dpairs, dseen gemm.Matrix
	part          gemm.Matrix // room for the longer of keys and values
	dcum, dbeta   []float32
}

func (w *worker) newDeltaGrads(s deltaShape) deltaGrads {
	c, wide := s.chunk, max(s.k, s.v)
	room := w.tmp(3, c*(2*s.k+2*s.v+wide+2*c+2))
	vector := func(n int) []float32 {
		part := room[:n:n]
		room = room[n:]
		return part
	}
	matrix := func(cols int) gemm.Matrix { return gemm.Matrix{Data: vector(c * cols), Stride: cols} }
	return deltaGrads{
		dq: matrix(s.k), dkey: matrix(s.k), do: matrix(s.v), ddelta: matrix(s.v), part: matrix(wide),
		dpairs: matrix(c), dseen: matrix(c), dcum: vector(c), dbeta: vector(c),
	}
}

func deltaRuleBwd(e *Env, a *graph.Attr, t []Tensor) {
	do := &t[graph.DeltaRuleBwdDO]
	e.begin(a, t).tasks(do.Rows/a.Seq*a.KVHeads, func(c *call, w *worker, i int) {
		s := deltaShapeOf(c.a, &c.t[graph.DeltaRuleBwdDO])
		w.deltaRuleBwd(c, s, i/s.keys*s.seq, i%s.keys)
	})
}

// deltaRuleBwd computes the value heads of key head g of the sequence that begins at row base. Documents are independent; in each,
// the parts between states that are kept are visited from the last to the first.
func (w *worker) deltaRuleBwd(c *call, s deltaShape, base, g int) {
	b := deltaBwd{c: c, deltaChunk: w.newDeltaChunk(s), deltaGrads: w.newDeltaGrads(s), g: g}
	b.all, b.dstate = w.tmp(1, s.group*s.kept/s.chunk*s.k*s.v), w.tmp(2, s.group*s.k*s.v)
	for first, end := base, 0; first < base+s.seq; first = end {
		end = documentEnd(&c.t[graph.DeltaRuleBwdStarts], first, base+s.seq)
		clear(b.dstate)
		for row := first + (end-first-1)/s.kept*s.kept; row >= first; row -= s.kept {
			b.remake(first, row, min(row+s.kept, end))
			for k := (min(row+s.kept, end) - row - 1) / s.chunk; k >= 0; k-- {
				at := row + k*s.chunk
				b.chunkBwd(at, min(s.chunk, end-at), k)
			}
			c.env.Pool.StepBack()
		}
	}
}

// deltaBwd is the backward pass of key head g.
type deltaBwd struct {
	c *call
	deltaChunk
	deltaGrads
	g      int
	all    []float32 // the state at the beginning of each chunk between two that are kept, of each head of the group
	dstate []float32 // the gradient of the state at the end of the chunk, likewise
}

// state returns the state of the i-th head of the group at the beginning of chunk k.
func (b *deltaBwd) state(i, k int) gemm.Matrix {
	n := b.k * b.v
	return gemm.Matrix{Data: b.all[(i*(b.kept/b.chunk)+k)*n:][:n], Stride: b.v}
}

// remake computes the states at the beginnings of the chunks in rows [row, end) of the document that begins in row first.
func (b *deltaBwd) remake(first, row, end int) {
	qkv, gates, states := &b.c.t[graph.DeltaRuleBwdQKV], &b.c.t[graph.DeltaRuleBwdGates], &b.c.t[graph.DeltaRuleBwdStates]
	for i := range b.group {
		if at := b.state(i, 0).Data; row == first {
			clear(at)
		} else {
			b.loadState(states, row-b.kept, b.g*b.group+i, at)
		}
	}
	for k, at := 0, row; at+b.chunk < end; k, at = k+1, at+b.chunk {
		b.loadKeys(qkv, at, b.chunk, b.g)
		for i := range b.group {
			b.loadHead(qkv, gates, at, b.g*b.group+i)
			b.solve(b.state(i, k))
			b.advance(b.state(i, k+1), b.state(i, k))
		}
	}
}

// chunkBwd computes the gradients of n tokens from row on, chunk k of those whose states are known.
func (b *deltaBwd) chunkBwd(row, n, k int) {
	dqkv, qkv, gates := &b.c.t[graph.DeltaRuleBwdDQKV], &b.c.t[graph.DeltaRuleBwdQKV], &b.c.t[graph.DeltaRuleBwdGates]
	b.loadKeys(qkv, row, n, b.g)
	clear(b.dq.Data)
	clear(b.dkey.Data)
	for i := range b.group {
		h := b.g*b.group + i
		b.loadHead(qkv, gates, row, h)
		b.solve(b.state(i, k))
		b.headBwd(row, h, b.state(i, k), gemm.Matrix{Data: b.dstate[i*b.k*b.v:][:b.k*b.v], Stride: b.v})
		b.storeGates(row, h)
	}
	for i := range n {
		dq, dkey := rowOfMatrix(b.dq, i, b.k), rowOfMatrix(b.dkey, i, b.k)
		b.throughLength(dq, rowOfMatrix(b.q, i, b.k), b.lengthQ[i], b.queryScale())
		b.throughLength(dkey, rowOfMatrix(b.key, i, b.k), b.length[i], 1)
		b.w.put(dqkv, row+i, b.query(b.g), dq)
		b.w.put(dqkv, row+i, b.deltaShape.key(b.g), dkey)
	}
}

// throughLength turns the gradient d of unit, of length scale, into that of the vector which was multiplied by scale*by.
func (b *deltaBwd) throughLength(d, unit []float32, by, scale float32) {
	along := b.w.v.Dot(d, unit) / (scale * scale)
	for c := range d {
		d[c] = by * scale * (d[c] - float32(along*unit[c]))
	}
}

// headBwd adds to the gradients of queries and keys, writes those of values, and turns that of the state at the chunk's end into that
// of the state at its beginning.
func (b *deltaBwd) headBwd(row, h int, state, dstate gemm.Matrix) {
	n, gemms := b.n, b.w.serial
	do := &b.c.t[graph.DeltaRuleBwdDO]
	for i := range n {
		b.copyRow(rowOfMatrix(b.do, i, b.v), do, row+i, h*b.v)
	}
	clear(b.dcum)
	last := b.grown[n-1]
	b.dcum[n-1] = last * b.w.v.Dot(dstate.Data, state.Data)
	kept := b.scaled(b.wide, b.key, b.k, b.rest) // keys as they are in the state at the end
	gemms.Gemm(gemm.TN, n, b.v, n, b.seen, b.do, b.ddelta, gemm.Init{})
	gemms.Gemm(gemm.NN, n, b.v, b.k, kept, dstate, b.ddelta, gemm.Init{Residual: b.ddelta})
	gemms.Gemm(gemm.NT, n, n, b.v, b.do, b.delta, b.dseen, gemm.Init{})
	part := b.part
	part.Stride = b.k
	gemms.Gemm(gemm.NT, n, b.k, b.v, b.delta, dstate, part, gemm.Init{})
	for i := range n {
		along := b.addScaled(b.dkey, part, b.key, i, b.rest[i])
		b.dcum[i] -= along
		b.dcum[n-1] += along
	}
	gemms.Gemm(gemm.NT, n, b.k, b.v, b.do, state, part, gemm.Init{})
	for i := range n {
		b.dcum[i] += b.addScaled(b.dq, part, b.q, i, b.grown[i])
	}
	b.solveBack()
	gemms.Gemm(gemm.NT, n, n, b.v, b.ddelta, b.delta, b.dpairs, gemm.Init{})
	b.valuesBwd(row, h)
	gemms.Gemm(gemm.NT, n, b.k, b.v, b.ddelta, state, part, gemm.Init{}) // ddelta is now that of values
	for i := range n {
		b.dcum[i] += b.addScaled(b.dkey, part, b.key, i, -b.grown[i])
	}
	b.w.v.Scale(dstate.Data, last)
	gemms.Gemm(gemm.TN, b.k, b.v, n, b.scaled(b.wide, b.q, b.k, b.grown), b.do, dstate, gemm.Init{Residual: dstate})
	for i := range n {
		b.grown[i] = -b.grown[i]
	}
	gemms.Gemm(gemm.TN, b.k, b.v, n, b.scaled(b.wide, b.key, b.k, b.grown), b.ddelta, dstate, gemm.Init{Residual: dstate})
	b.insideBwd()
}

// addScaled adds row i of a gradient, times by, to that of m, and returns its product with row i of m.
func (b *deltaBwd) addScaled(into, grad, m gemm.Matrix, i int, by float32) float32 {
	g := rowOfMatrix(grad, i, b.k)
	b.w.v.Scale(g, by)
	b.w.v.Add(rowOfMatrix(into, i, b.k), g, 0)
	return b.w.v.Dot(g, rowOfMatrix(m, i, b.k))
}

// solveBack turns the gradient of D into that of what D solves the equations for.
func (b *deltaBwd) solveBack() {
	for i := b.n - 2; i >= 0; i-- {
		after := b.n - 1 - i
		column := gemm.Matrix{Data: b.minus.Data[(i+1)*b.minus.Stride+i:], Stride: b.minus.Stride}
		d := gemm.Matrix{Data: rowOfMatrix(b.ddelta, i, b.v), Stride: b.v}
		b.w.serial.Gemm(gemm.TN, 1, b.v, after, column, from(b.ddelta, i+1), d, gemm.Init{Residual: d})
	}
}

// valuesBwd turns that gradient into the values' and writes it; the rest goes to dbeta.
func (b *deltaBwd) valuesBwd(row, h int) {
	for i := range b.n {
		d, v, read := rowOfMatrix(b.ddelta, i, b.v), rowOfMatrix(b.val, i, b.v), rowOfMatrix(b.read, i, b.v)
		grown := b.grown[i]
		for c := range v {
			v[c] -= float32(grown * read[c])
		}
		b.dbeta[i] = b.w.v.Dot(d, v)
		b.w.v.Scale(d, b.beta[i])
		b.w.put(&b.c.t[graph.DeltaRuleBwdDQKV], row+i, b.value(h), d)
	}
}

// insideBwd adds what comes through the products of queries and keys with keys of the same chunk.
func (b *deltaBwd) insideBwd() {
	n, gemms := b.n, b.w.serial
	for i := range n {
		dpairs, dseen, decays := rowOfMatrix(b.dpairs, i, n), rowOfMatrix(b.dseen, i, n), rowOfMatrix(b.decays, i, n)
		pairs, seen := rowOfMatrix(b.pairs, i, n), rowOfMatrix(b.seen, i, n)
		var taken float32
		for j := range i {
			d := -dpairs[j] // of A
			taken += float32(d * pairs[j])
			d *= b.beta[i]
			along := float32(d*pairs[j]) + float32(dseen[j]*seen[j])
			b.dcum[i] += along
			b.dcum[j] -= along
			dpairs[j] = d * decays[j]
			dseen[j] *= decays[j]
		}
		b.dbeta[i] += taken
		clear(dpairs[i:])
		clear(dseen[i+1:])
	}
	gemms.Gemm(gemm.NN, n, b.k, n, b.dpairs, b.key, b.dkey, gemm.Init{Residual: b.dkey})
	gemms.Gemm(gemm.TN, n, b.k, n, b.dpairs, b.key, b.dkey, gemm.Init{Residual: b.dkey})
	gemms.Gemm(gemm.NN, n, b.k, n, b.dseen, b.key, b.dq, gemm.Init{Residual: b.dq})
	gemms.Gemm(gemm.TN, n, b.k, n, b.dseen, b.q, b.dkey, gemm.Init{Residual: b.dkey})
}

// storeGates writes the gradients of head h's gates: a token's logarithm is part of all sums from it on.
func (b *deltaBwd) storeGates(row, h int) {
	dgates := &b.c.t[graph.DeltaRuleBwdDGates]
	var sum float32
	for i := b.n - 1; i >= 0; i-- {
		sum += b.dcum[i]
		dgates.row(row+i, h, h+1)[0] = sum
		dgates.row(row+i, b.heads+h, b.heads+h+1)[0] = b.dbeta[i]
	}
}
