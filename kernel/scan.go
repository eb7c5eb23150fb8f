package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// StateScan in chunks: see graph/scan.go for the equations. A task has a band of heads of a group in a sequence, whose states lie side
// by side, n x (heads*p), so that one product reads or writes all of them. Everything is float32, in the worker's buffers; all sums are
// chains of package gemm's, or of one thread. So no bit depends on anything but the document.

// scanShape describes a call.
type scanShape struct {
	heads, groups, each int // heads; groups; heads of a group
	n, p                int // rows and columns of a head's state
	bands, most         int // of a group; heads of a band
	chunk, seq          int // see graph.ScanChunk
	keptStates
}

// scanShapeOf describes a call with such results, be it one of StateScanAt.
func scanShapeOf(a *graph.Attr, o *Tensor) scanShape {
	s := scanShape{heads: a.Heads, groups: a.KVHeads, each: a.Heads / a.KVHeads, n: a.HeadDim, p: o.Cols / a.Heads, bands: graph.ScanBands(a), seq: a.Seq}
	s.most = (s.each + s.bands - 1) / s.bands
	s.chunk, s.keptStates = graph.ScanChunk(a.Seq), keptStates{graph.ScanKept(a.Seq), graph.ScanStateCols(a.Seq, s.n*s.p)}
	return s
}

// b and c return the first columns of those of group g in xbc.
func (s *scanShape) b(g int) int { return s.heads*s.p + g*s.n }
func (s *scanShape) c(g int) int { return s.heads*s.p + (s.groups+g)*s.n }

// scanGates are the gates of a head's tokens in a chunk.
type scanGates struct {
	dt, cum     []float32 // time steps; logarithms of what is kept, added up from the chunk's beginning
	grown, rest []float32 // exp(cum), exp(cum_last - cum)
}

// scanBand is a task: some heads, and len tokens of theirs in the worker's buffers.
type scanBand struct {
	scanShape
	w            *worker
	group        int
	first, wide  int // head; columns of all heads
	gates        []scanGates
	len          int
	b, c, x      gemm.Matrix // of the chunk
	fed          gemm.Matrix // dt*x
	read         gemm.Matrix // C.S
	pairs        gemm.Matrix // C.B
	decays, seen gemm.Matrix // of a head: exp(cum_i - cum_j) up to the diagonal; P
	one          []float32   // a state of one head
	own          struct{ b, c, x gemm.Matrix }
	gatesOf      [graph.ScanBand]scanGates
}

// rooms hands out parts of a buffer.
type rooms []float32

func (r *rooms) vector(n int) []float32 {
	part := (*r)[:n:n]
	*r = (*r)[n:]
	return part
}

func (r *rooms) matrix(rows, cols int) gemm.Matrix {
	return gemm.Matrix{Data: r.vector(rows * cols), Stride: cols}
}

// enter makes x band number k of the call, in buffer 0.
func (x *scanBand) enter(w *worker, s scanShape, k int) {
	x.scanShape, x.w, x.group = s, w, k/s.bands
	x.first = x.group*s.each + k%s.bands*s.most
	heads := min(s.most, (x.group+1)*s.each-x.first)
	x.wide = heads * s.p
	c := s.chunk
	room := rooms(w.tmp(0, c*(2*s.n+3*x.wide+3*c+4*heads)+s.n*s.p))
	x.own.b, x.own.c, x.own.x = room.matrix(c, s.n), room.matrix(c, s.n), room.matrix(c, x.wide)
	x.fed, x.read = room.matrix(c, x.wide), room.matrix(c, x.wide)
	x.pairs, x.decays, x.seen = room.matrix(c, c), room.matrix(c, c), room.matrix(c, c)
	x.gates = x.gatesOf[:heads]
	for i := range x.gates {
		x.gates[i] = scanGates{room.vector(c), room.vector(c), room.vector(c), room.vector(c)}
	}
	x.one = room.vector(s.n * s.p)
}

// rows returns columns of len rows of a tensor: its own memory, or float32 copies.
func (x *scanBand) rows(t *Tensor, row, lo, cols int, copies gemm.Matrix) gemm.Matrix {
	if t.DType == graph.F32 {
		return t.at(row, lo)
	}
	for i := range x.len {
		x.w.v.Widen(rowOfMatrix(copies, i, cols), t.row16(row+i, lo, lo+cols))
	}
	return copies
}

// part returns the columns of the i-th head.
func (x *scanBand) part(m gemm.Matrix, i int) gemm.Matrix {
	return gemm.Matrix{Data: m.Data[i*x.p:], Stride: m.Stride}
}

// load makes the n tokens from row on the chunk.
func (x *scanBand) load(xbc, gates *Tensor, row, n int) {
	x.len = n
	x.b, x.c = x.rows(xbc, row, x.scanShape.b(x.group), x.n, x.own.b), x.rows(xbc, row, x.scanShape.c(x.group), x.n, x.own.c)
	x.x = x.rows(xbc, row, x.first*x.p, x.wide, x.own.x)
	for i := range x.gates {
		g, h := &x.gates[i], x.first+i
		var sum float32
		for r := range n {
			sum += gates.row(row+r, h, h+1)[0]
			g.cum[r], g.dt[r] = sum, gates.row(row+r, x.heads+h, x.heads+h+1)[0]
		}
		x.w.v.Exp(g.grown[:n], g.cum[:n], g.cum[:n], 1, 0)
		x.w.v.Exp(g.rest[:n], g.cum[:n], g.cum[:n], -1, -sum)
		fed, in := x.part(x.fed, i), x.part(x.x, i)
		for r := range n {
			x.w.v.ScaleTo(rowOfMatrix(fed, r, x.p), rowOfMatrix(in, r, x.p), g.dt[r])
		}
	}
}

// multiply computes what heads have in common, of states at the chunk's beginning.
func (x *scanBand) multiply(states gemm.Matrix) {
	x.w.serial.Gemm(gemm.NT, x.len, x.len, x.n, x.c, x.b, x.pairs, gemm.Init{})
	x.w.serial.Gemm(gemm.NN, x.len, x.wide, x.n, x.c, states, x.read, gemm.Init{})
}

// see computes the i-th head's P.
func (x *scanBand) see(i int) {
	cum := x.gates[i].cum
	for r := range x.len {
		decays, seen := rowOfMatrix(x.decays, r, x.len), rowOfMatrix(x.seen, r, x.len)
		x.w.v.Exp(decays[:r+1], cum[:r+1], cum[:r+1], -1, -cum[r])
		x.product(seen[:r+1], decays, rowOfMatrix(x.pairs, r, x.len))
		clear(seen[r+1:])
	}
}

// product sets y to the products of elements.
func (x *scanBand) product(y, a, b []float32) { x.w.v.NormRMS(y, a, b, 1) }

// scaled multiplies rows of the i-th head's columns.
func (x *scanBand) scaled(to, m gemm.Matrix, i int, by []float32) {
	to, m = x.part(to, i), x.part(m, i)
	for r := range x.len {
		x.w.v.ScaleTo(rowOfMatrix(to, r, x.p), rowOfMatrix(m, r, x.p), by[r])
	}
}

// results writes the i-th head's O, whose first term is in read.
func (x *scanBand) results(o, skip *Tensor, row, i int) {
	x.see(i)
	x.scaled(x.read, x.read, i, x.gates[i].grown)
	out, in, h := x.part(x.read, i), x.part(x.x, i), x.first+i
	x.w.serial.Gemm(gemm.NN, x.len, x.p, x.len, x.seen, x.part(x.fed, i), out, gemm.Init{Residual: out})
	by, skipped := float32(skip.At(0, h)), x.one[:x.p]
	for r := range x.len {
		y := rowOfMatrix(out, r, x.p)
		x.w.v.ScaleTo(skipped, rowOfMatrix(in, r, x.p), by)
		x.w.v.Add(y, skipped, 0)
		x.w.put(o, row+r, h*x.p, y)
	}
}

// advance makes the states those at the chunk's end. It overwrites fed.
func (x *scanBand) advance(states gemm.Matrix) {
	for i := range x.gates {
		x.scaled(x.fed, x.fed, i, x.gates[i].rest)
	}
	x.keep(states)
	x.w.serial.Gemm(gemm.TN, x.n, x.wide, x.len, x.b, x.fed, states, gemm.Init{Residual: states})
}

// keep multiplies states by what the chunk leaves of them.
func (x *scanBand) keep(states gemm.Matrix) {
	for i := range x.gates {
		left, part := x.gates[i].grown[x.len-1], x.part(states, i)
		for k := range x.n {
			x.w.v.Scale(rowOfMatrix(part, k, x.p), left)
		}
	}
}

// store keeps the heads' states in the rows from first on.
func (x *scanBand) store(kept *Tensor, first int, states gemm.Matrix) {
	for i := range x.gates {
		for k := range x.n {
			copy(x.one[k*x.p:], rowOfMatrix(x.part(states, i), k, x.p))
		}
		x.keepState(kept, first, x.first+i, x.one)
	}
}

// fetch is the inverse of store.
func (x *scanBand) fetch(kept *Tensor, first int, states gemm.Matrix) {
	for i := range x.gates {
		x.loadState(kept, first, x.first+i, x.one)
		for k := range x.n {
			copy(rowOfMatrix(x.part(states, i), k, x.p), x.one[k*x.p:])
		}
	}
}

func stateScan(e *Env, a *graph.Attr, t []Tensor) {
	o := &t[graph.StateScanO]
	e.begin(a, t).tasks(o.Rows/a.Seq*a.KVHeads*graph.ScanBands(a), func(c *call, w *worker, i int) {
		s := scanShapeOf(c.a, &c.t[graph.StateScanO])
		each := s.groups * s.bands
		w.scan.enter(w, s, i%each)
		w.scan.sequence(c, i/each*s.seq)
	})
}

// sequence computes that which begins at row base.
func (x *scanBand) sequence(c *call, base int) {
	o, kept, xbc, gates := &c.t[graph.StateScanO], &c.t[graph.StateScanStates], &c.t[graph.StateScanXBC], &c.t[graph.StateScanGates]
	states := gemm.Matrix{Data: x.w.tmp(1, x.n*x.wide), Stride: x.wide}
	for first, end := base, 0; first < base+x.seq; first = end {
		end = documentEnd(&c.t[graph.StateScanStarts], first, base+x.seq)
		clear(states.Data)
		last := first // row after the last state that is kept
		for row := first; row < end; row += x.chunk {
			x.load(xbc, gates, row, min(x.chunk, end-row))
			x.multiply(states)
			for i := range x.gates {
				x.results(o, &c.t[graph.StateScanSkip], row, i)
			}
			x.advance(states)
			if next := row + x.chunk; next-last == x.kept && next <= end {
				x.store(kept, last, states)
				last = next
			}
		}
		for i := range x.gates {
			x.clearStates(kept, last, end, x.first+i)
		}
		c.env.Pool.StepBack()
	}
}

// stateScanAt continues a sequence token by token, whatever the number of tokens of a call, so no division of a text into calls changes
// a bit, nor which other sequences' tokens are in a call. A task has a head.
func stateScanAt(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).tasks(a.Heads, func(c *call, w *worker, h int) {
		o, states, xbc, gates := &c.t[graph.StateScanAtO], &c.t[graph.StateScanAtState], &c.t[graph.StateScanAtXBC], &c.t[graph.StateScanAtGates]
		s := scanShapeOf(c.a, o)
		skip, out := float32(c.t[graph.StateScanAtSkip].At(0, h)), w.tmp(4, 2*s.p)
		y, fed := gemm.Matrix{Data: out[:s.p], Stride: s.p}, gemm.Matrix{Data: out[s.p:], Stride: s.p}
		for r := 0; r < o.Rows; {
			state, end, of := stateAt(w, o, states, &c.t[graph.StateScanAtPos], r, s.heads, h, s.n)
			for ; of && r < end; r++ {
				x := w.load(0, xbc, r, h*s.p, (h+1)*s.p)
				b, c := w.load(1, xbc, r, s.b(h/s.each), s.b(h/s.each)+s.n), w.load(2, xbc, r, s.c(h/s.each), s.c(h/s.each)+s.n)
				kept := float32(math.Exp(float64(gates.row(r, h, h+1)[0])))
				for k := range s.n {
					w.v.Scale(rowOfMatrix(state, k, s.p), kept)
				}
				w.v.ScaleTo(fed.Data, x, gates.row(r, s.heads+h, s.heads+h+1)[0])
				w.v.ScaleTo(y.Data, x, skip)
				w.serial.Gemm(gemm.TN, s.n, s.p, 1, gemm.Matrix{Data: b, Stride: s.n}, fed, state, gemm.Init{Residual: state})
				w.serial.Gemm(gemm.NN, 1, s.p, s.n, gemm.Matrix{Data: c, Stride: s.n}, state, y, gemm.Init{Residual: y})
				w.put(o, r, h*s.p, y.Data)
			}
			r = end
		}
	})
}
