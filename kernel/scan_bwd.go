package kernel

import (
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// scanBwd is the backward pass of a band: what it has besides the forward pass.
type scanBwd struct {
	*scanBand
	call          *call
	states        []float32   // at the beginning of each chunk between two that are kept
	dstates       gemm.Matrix // the gradient of those at the chunk's end
	do, through   gemm.Matrix // of results; B.dS
	grown         gemm.Matrix // exp(cum)*do
	dfed          gemm.Matrix
	db, dc        gemm.Matrix
	dpairs, dseen gemm.Matrix // summed over heads; of a head
	terms         []float32   // a row's
	dcum, less    []float32   // of a head's logarithms; what is taken from them
	own           gemm.Matrix // room for do
}

func stateScanBwd(e *Env, a *graph.Attr, t []Tensor) {
	do, bands := &t[graph.StateScanBwdDO], graph.ScanBands(a)
	c := e.begin(a, t)
	c.tasks(do.Rows/a.Seq*a.KVHeads*bands, func(c *call, w *worker, i int) {
		s := scanShapeOf(c.a, &c.t[graph.StateScanBwdDO])
		each := s.groups * s.bands
		w.scan.enter(w, s, i%each)
		x := scanBwd{scanBand: &w.scan, call: c}
		x.enter()
		x.sequence(i / each * s.seq)
	})
	if bands > 1 {
		c.byRows(do.Rows, 2*bands*a.KVHeads*a.HeadDim, addBands)
	}
}

// addBands adds up the gradients of b and c over bands, in their order.
func addBands(c *call, w *worker, at block) {
	dxbc, bands := &c.t[graph.StateScanBwdDXBC], &c.t[graph.StateScanBwdBands]
	s := scanShapeOf(c.a, &c.t[graph.StateScanBwdDO])
	sum := w.tmp(0, 2*s.n)
	for r := at.R0; r < at.R1; r++ {
		for g := range s.groups {
			copy(sum, bands.row(r, s.bandAt(g*s.bands), s.bandAt(g*s.bands+1)))
			for k := g*s.bands + 1; k < (g+1)*s.bands; k++ {
				w.v.Add(sum, bands.row(r, s.bandAt(k), s.bandAt(k+1)), 0)
			}
			w.put(dxbc, r, s.b(g), sum[:s.n])
			w.put(dxbc, r, s.c(g), sum[s.n:])
		}
	}
}

// bandAt returns the first column of what band k contributes: gradients of b, then of c.
func (s *scanShape) bandAt(k int) int { return k * 2 * s.n }

// enter divides buffers among the parts.
func (x *scanBwd) enter() {
	c, n := x.chunk, x.n
	room := rooms(x.w.tmp(3, c*(5*x.wide+2*n+2*c+3)))
	x.own, x.through, x.grown, x.dfed = room.matrix(c, x.wide), room.matrix(c, x.wide), room.matrix(c, x.wide), room.matrix(c, x.wide)
	x.db, x.dc, x.dpairs, x.dseen = room.matrix(c, n), room.matrix(c, n), room.matrix(c, c), room.matrix(c, c)
	x.terms, x.dcum, x.less = room.vector(max(c, x.p)), room.vector(c), room.vector(c)
	x.states = x.w.tmp(1, x.kept/c*n*x.wide)
	x.dstates = gemm.Matrix{Data: x.w.tmp(2, n*x.wide), Stride: x.wide}
}

// state returns the states at the beginning of chunk k.
func (x *scanBwd) state(k int) gemm.Matrix {
	n := x.n * x.wide
	return gemm.Matrix{Data: x.states[k*n:][:n], Stride: x.wide}
}

// sequence computes that which begins at row base. Documents are independent; in each, the parts between states that are kept are
// visited from the last to the first.
func (x *scanBwd) sequence(base int) {
	for first, end := base, 0; first < base+x.seq; first = end {
		end = documentEnd(&x.call.t[graph.StateScanBwdStarts], first, base+x.seq)
		clear(x.dstates.Data)
		for row := first + (end-first-1)/x.kept*x.kept; row >= first; row -= x.kept {
			x.remake(first, row, min(row+x.kept, end))
			for k := (min(row+x.kept, end) - row - 1) / x.chunk; k >= 0; k-- {
				at := row + k*x.chunk
				x.chunkBwd(at, min(x.chunk, end-at), k)
			}
			x.call.env.Pool.StepBack()
		}
	}
}

// remake computes the states at the beginnings of the chunks in rows [row, end) of the document that begins in row first.
func (x *scanBwd) remake(first, row, end int) {
	if at := x.state(0); row == first {
		clear(at.Data)
	} else {
		x.fetch(&x.call.t[graph.StateScanBwdStates], row-x.kept, at)
	}
	for k, at := 0, row; at+x.chunk < end; k, at = k+1, at+x.chunk {
		x.load(&x.call.t[graph.StateScanBwdXBC], &x.call.t[graph.StateScanBwdGates], at, x.chunk)
		copy(x.state(k+1).Data, x.state(k).Data)
		x.advance(x.state(k + 1))
	}
}

// chunkBwd computes the gradients of n tokens from row on, chunk k of those whose states are known, and turns those of the states at
// the chunk's end into those at its beginning.
func (x *scanBwd) chunkBwd(row, n, k int) {
	t, states, gemms := &x.call.t, x.state(k), x.w.serial
	x.load(&t[graph.StateScanBwdXBC], &t[graph.StateScanBwdGates], row, n)
	x.do = x.rows(&t[graph.StateScanBwdDO], row, x.first*x.p, x.wide, x.own)
	x.multiply(states)
	gemms.Gemm(gemm.NN, n, x.wide, x.n, x.b, x.dstates, x.through, gemm.Init{})
	clear(x.dpairs.Data)
	for i := range x.gates {
		x.headBwd(row, i, states)
	}
	gemms.Gemm(gemm.NT, n, x.n, x.wide, x.grown, states, x.dc, gemm.Init{})
	gemms.Gemm(gemm.NN, n, x.n, n, x.dpairs, x.b, x.dc, gemm.Init{Residual: x.dc})
	gemms.Gemm(gemm.NT, n, x.n, x.wide, x.fed, x.dstates, x.db, gemm.Init{})
	gemms.Gemm(gemm.TN, n, x.n, n, x.dpairs, x.c, x.db, gemm.Init{Residual: x.db})
	x.keep(x.dstates)
	gemms.Gemm(gemm.TN, x.n, x.wide, n, x.c, x.grown, x.dstates, gemm.Init{Residual: x.dstates})
	for r := range n {
		db, dc := rowOfMatrix(x.db, r, x.n), rowOfMatrix(x.dc, r, x.n)
		if x.bands > 1 {
			into := t[graph.StateScanBwdBands].row(row+r, x.bandAt(x.number()), x.bandAt(x.number()+1))
			copy(into[copy(into, db):], dc)
			continue
		}
		x.w.put(&t[graph.StateScanBwdDXBC], row+r, x.scanShape.b(x.group), db)
		x.w.put(&t[graph.StateScanBwdDXBC], row+r, x.scanShape.c(x.group), dc)
	}
}

// number returns that of the band.
func (x *scanBand) number() int { return x.group*x.bands + (x.first-x.group*x.each)/x.most }

// headBwd computes the gradients of the i-th head's x and gates, adds to those of pairs, and leaves what the sums over all heads need:
// exp(cum)*do in grown, and exp(cum_last-cum)*dt*x in fed.
func (x *scanBwd) headBwd(row, i int, states gemm.Matrix) {
	n, p, gates, gemms := x.len, x.p, &x.gates[i], x.w.serial
	do, fed, dfed, through, read := x.part(x.do, i), x.part(x.fed, i), x.part(x.dfed, i), x.part(x.through, i), x.part(x.read, i)
	x.see(i)
	gemms.Gemm(gemm.TN, n, p, n, x.seen, do, dfed, gemm.Init{})
	gemms.Gemm(gemm.NT, n, n, p, do, fed, x.dseen, gemm.Init{})
	x.scaled(x.grown, x.do, i, gates.grown)
	x.scaled(x.through, x.through, i, gates.rest)
	var kept float32 // of the states' products with their gradients
	for k := range x.n {
		kept += x.w.v.Dot(rowOfMatrix(x.part(states, i), k, p), rowOfMatrix(x.part(x.dstates, i), k, p))
	}
	clear(x.less)
	last := float32(gates.grown[n-1] * kept)
	for r := range n {
		through := rowOfMatrix(through, r, p)
		x.w.v.Add(rowOfMatrix(dfed, r, p), through, 0)
		along := x.w.v.Dot(through, rowOfMatrix(fed, r, p))
		x.dcum[r] = x.w.v.Dot(rowOfMatrix(read, r, p), rowOfMatrix(x.part(x.grown, i), r, p)) - along + x.insideBwd(r)
		last += along
	}
	x.dcum[n-1] += last
	x.valuesBwd(row, i)
	x.scaled(x.fed, x.fed, i, gates.rest)
}

// insideBwd adds what comes through P to the gradients of pairs, and returns what row r says of its logarithm; what it says of those
// before goes to less.
func (x *scanBwd) insideBwd(r int) float32 {
	d, terms := rowOfMatrix(x.dseen, r, r+1), x.terms[:r+1]
	x.product(terms, d, rowOfMatrix(x.seen, r, r+1))
	x.w.v.Add(x.less[:r+1], terms, 0)
	x.product(d, d, rowOfMatrix(x.decays, r, r+1))
	x.w.v.Add(rowOfMatrix(x.dpairs, r, r+1), d, 0)
	return x.w.v.Sum(terms)
}

// valuesBwd writes the gradients of the i-th head's x and gates: a token's logarithm is part of all sums from it on.
func (x *scanBwd) valuesBwd(row, i int) {
	h, p, t := x.first+i, x.p, &x.call.t
	dgates, skip := &t[graph.StateScanBwdDGates], float32(t[graph.StateScanBwdSkip].At(0, h))
	do, dfed, in := x.part(x.do, i), x.part(x.dfed, i), x.part(x.x, i)
	skipped := x.terms[:p]
	var sum float32
	for r := x.len - 1; r >= 0; r-- {
		d, dy, x0 := rowOfMatrix(dfed, r, p), rowOfMatrix(do, r, p), rowOfMatrix(in, r, p)
		sum += x.dcum[r] - x.less[r]
		dgates.row(row+r, h, h+1)[0] = sum
		dgates.row(row+r, x.heads+h, x.heads+h+1)[0] = x.w.v.Dot(d, x0)
		dgates.row(row+r, 2*x.heads+h, 2*x.heads+h+1)[0] = x.w.v.Dot(dy, x0)
		x.w.v.Scale(d, x.gates[i].dt[r])
		x.w.v.ScaleTo(skipped, dy, skip)
		x.w.v.Add(d, skipped, 0)
		x.w.put(&t[graph.StateScanBwdDXBC], row+r, h*p, d)
	}
}
