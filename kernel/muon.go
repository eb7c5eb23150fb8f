package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// Muon, see graph/muon.go. The mean of gradients and the step are elementwise, and between them are five steps of three
// products, which take nearly all of the time: s³ + 3 s² n operations a step for a matrix whose extents are s <= n, since H and
// H² are symmetric. The matrices of the steps have the type of the operand work, their sums are in fp32, and so is all else. The
// clip factor, state in bf16, weights in halves and the bf16 copy are as in update.go.

// muonRef is the clear version, in float64.
func muonRef(_ *Env, a *graph.Attr, t []Tensor) {
	p, m, g, clip, scalars, p16 := &t[graph.MuonP], &t[graph.MuonM], &t[graph.MuonGrad], &t[graph.MuonClip], &t[graph.MuonScalars], &t[graph.MuonP16]
	factor, rate := 1.0, scalars.At(0, graph.ScalarLR)
	if !clip.Absent() {
		factor = clip.At(0, 0)
	}
	x := make([]float64, p.Rows*p.Cols)
	for i := range x {
		mean := a.Beta1*m.At(i/p.Cols, i%p.Cols) + (1-a.Beta1)*g.At(i/p.Cols, i%p.Cols)*factor
		x[i] = a.Beta1*mean + (1-a.Beta1)*g.At(i/p.Cols, i%p.Cols)*factor
		if a.Masked && weightAt(t, i/p.Cols, i%p.Cols) == 0 {
			mean, x[i] = 0, 0
		}
		if factor != 0 {
			setByChance(m, a, scalars, i, 1, mean)
		}
	}
	x = orthogonalRef(x, p.Rows, p.Cols, a.Eps, rounding(t[graph.MuonWork].DType))
	for i := range x {
		r, c := i/p.Cols, i%p.Cols
		if factor != 0 && !(a.Masked && weightAt(t, r, c) == 0) {
			setWeight(a, t, i, weightAt(t, r, c)*(1-rate*a.Decay)-rate*a.Scale*x[i])
		}
		if !p16.Absent() {
			setUpper(p16, r, c, p.At(r, c))
		}
	}
}

// weightAt returns a weight, from its halves if it is stored so.
func weightAt(t []Tensor, r, c int) float64 {
	was, rest := t[graph.MuonP].At(r, c), &t[graph.MuonRest]
	if rest.Absent() {
		return was
	}
	return float64(float16.Join(uint16(math.Float32bits(float32(was))>>16), uint16(rest.At(r, c))))
}

// setWeight stores weight number i.
func setWeight(a *graph.Attr, t []Tensor, i int, x float64) {
	p, rest := &t[graph.MuonP], &t[graph.MuonRest]
	if rest.Absent() {
		setByChance(p, a, &t[graph.MuonScalars], i, 0, x)
		return
	}
	rest.Set(i/p.Cols, i%p.Cols, float64(setUpper(p, i/p.Cols, i%p.Cols, x)))
}

// setByChance stores element i of operand k, in bf16 rounded stochastically.
func setByChance(t *Tensor, a *graph.Attr, scalars *Tensor, i, k int, x float64) {
	if t.DType != graph.BF16 {
		t.Set(i/t.Cols, i%t.Cols, x)
		return
	}
	low, high := graph.ChanceKey(scalars.F32[graph.ScalarChance], a.Param, k)
	t.BF16[i/t.Cols*t.Stride+i%t.Cols] = float16.DrawBF16(float32(x), simd.Draws(uint32(a.First+i), low, high))
}

// rounding returns what storing a number as a type makes of it.
func rounding(d graph.DType) func(float64) float64 {
	if d == graph.BF16 {
		return func(v float64) float64 { return float64(float16.FromBF16(float16.ToBF16(float32(v)))) }
	}
	return func(v float64) float64 { return v }
}

// orthogonalRef returns what x [rows, cols] becomes in the steps, whose matrices are rounded when they are stored.
func orthogonalRef(x []float64, rows, cols int, eps float64, round func(float64) float64) []float64 {
	var norm float64
	for i, v := range x {
		x[i] = round(v)
		norm += x[i] * x[i]
	}
	norm = max(math.Sqrt(norm), eps)
	across := func(y []float64, r, c int) []float64 { // transposed
		z := make([]float64, len(y))
		for i := range y {
			z[i%c*r+i/c] = y[i]
		}
		return z
	}
	times := func(a, b, first []float64, m, n, k int) []float64 {
		y := make([]float64, m*n)
		copy(y, first)
		for i := range y {
			for j := range k {
				y[i] += a[i/n*k+j] * b[j*n+i%n]
			}
			y[i] = round(y[i])
		}
		return y
	}
	for i := range x {
		x[i] = round(x[i] / norm)
	}
	wide, s, n := rows <= cols, min(rows, cols), max(rows, cols)
	if !wide {
		x = across(x, rows, cols)
	}
	for k := range graph.MuonSteps {
		linear, square := graph.MuonPolynomial(k)
		gram := times(x, across(x, s, n), nil, s, s, n)
		poly := times(gram, gram, nil, s, s, s)
		for i := range poly {
			poly[i] = round(linear*gram[i] + square*poly[i])
		}
		x = times(poly, x, x, s, n, s)
	}
	for i := range x {
		x[i] *= graph.MuonGain()
	}
	if !wide {
		x = across(x, s, n)
	}
	return x
}

func muon(e *Env, a *graph.Attr, t []Tensor) {
	p, clip, scalars := t[graph.MuonP], &t[graph.MuonClip], &t[graph.MuonScalars]
	p16, rest := t[graph.MuonP16], t[graph.MuonRest]
	factor, rate := float32(1), float64(scalars.F32[graph.ScalarLR])
	if !clip.Absent() {
		factor = clip.F32[0]
	}
	if factor == 0 {
		if !p16.Absent() {
			upper(e, a, p16, p)
		}
		return
	}
	at := graph.MuonPlacesOf(p.Rows, p.Cols)
	place := func(from, rows, cols int) Tensor {
		x := Tensor{DType: t[graph.MuonWork].DType, Rows: rows, Cols: cols, Stride: cols}
		if x.DType == graph.BF16 {
			x.BF16 = t[graph.MuonWork].BF16[from : from+rows*cols]
		} else {
			x.F32 = t[graph.MuonWork].F32[from : from+rows*cols]
		}
		return x
	}
	x, next := place(at.Y, p.Rows, p.Cols), place(at.Next, p.Rows, p.Cols)

	c := e.begin(a, []Tensor{t[graph.MuonM], x, t[graph.MuonGrad], p, rest})
	c.step = simd.Update{Clip: factor, Beta1: float32(a.Beta1), Rest1: float32(1 - a.Beta1), Keep: float32(1 - rate*a.Decay), Step: float32(rate * a.Scale * graph.MuonGain())}
	for k := range c.keys {
		c.keys[k][0], c.keys[k][1] = graph.ChanceKey(scalars.F32[graph.ScalarChance], a.Param, k)
	}
	c.inBuffers(4).byElements(5, muonMean)

	side := min(p.Rows, p.Cols)
	gram, poly := place(at.Gram, side, side), place(at.Poly, side, side)
	norm := math.Sqrt(e.squares(a, x))
	unit := e.begin(a, []Tensor{x})
	unit.f[0] = float32(1 / max(norm, a.Eps))
	unit.inBuffers(1).byElements(1, muonUnit)
	wide := p.Rows <= p.Cols
	for k := range graph.MuonSteps {
		if wide {
			e.Gemm.Symmetric(gemm.NT, side, p.Cols, x.matrix(), x.matrix(), gram.matrix())
		} else {
			e.Gemm.Symmetric(gemm.TNB, side, p.Rows, x.matrix(), x.matrix(), gram.matrix())
		}
		e.Gemm.Symmetric(gemm.NN, side, side, gram.matrix(), gram.matrix(), poly.matrix())
		linear, square := graph.MuonPolynomial(k)
		sum := e.begin(a, []Tensor{poly, gram})
		sum.f[0], sum.f[1] = float32(linear), float32(square)
		sum.inBuffers(2).byElements(2, muonPoly)
		left, right := poly, x
		if !wide {
			left, right = x, poly
		}
		e.Gemm.Gemm(gemm.NN, p.Rows, p.Cols, side, left.matrix(), right.matrix(), next.matrix(), gemm.Init{Residual: x.matrix()})
		x, next = next, x
	}
	e.begin(a, []Tensor{p, x, p16, rest}).inBuffers(2).byElements(4, muonStep)
}

// muonMean updates the mean of gradients, m, and makes Y of m and g.
func muonMean(c *call, w *worker, b block) {
	k := &c.step
	for r := b.R0; r < b.R1; r++ {
		m, g, x := w.load(0, &c.t[0], r, b.C0, b.C1), w.load(1, &c.t[2], r, b.C0, b.C1), w.dest(3, &c.t[1], r, b.C0, b.C1)
		for i, v := range g {
			v = float32(float32(v*k.Clip) * k.Rest1)
			m[i] = float32(k.Beta1*m[i]) + v
			x[i] = float32(k.Beta1*m[i]) + v
		}
		if c.a.Masked {
			p, _ := w.joined(2, &c.t[3], &c.t[4], r, b)
			for i, v := range p {
				if v == 0 {
					m[i], x[i] = 0, 0
				}
			}
		}
		w.store(x, &c.t[1], r, b.C0, b.C1)
		if c.t[0].DType == graph.BF16 {
			w.v.Draw(c.t[0].row16(r, b.C0, b.C1), m, uint32(c.a.First+r*c.t[0].Cols+b.C0), c.keys[1][0], c.keys[1][1])
		}
	}
}

// joined returns weights of a row as fp32, in buffer k unless they are, and their lower halves if they have any.
func (w *worker) joined(k int, p, rest *Tensor, r int, b block) (values []float32, low []uint16) {
	values = w.load(k, p, r, b.C0, b.C1)
	if !rest.Absent() {
		low = rest.row16(r, b.C0, b.C1)
		w.v.Join(values, low)
	}
	return values, low
}

// muonUnit divides Y by its norm.
func muonUnit(c *call, w *worker, b block) {
	for r := b.R0; r < b.R1; r++ {
		x := w.load(0, &c.t[0], r, b.C0, b.C1)
		for i := range x {
			x[i] *= c.f[0]
		}
		w.store(x, &c.t[0], r, b.C0, b.C1)
	}
}

// muonPoly makes P of H² and H.
func muonPoly(c *call, w *worker, b block) {
	for r := b.R0; r < b.R1; r++ {
		y, g := w.load(0, &c.t[0], r, b.C0, b.C1), w.load(1, &c.t[1], r, b.C0, b.C1)
		for i, v := range g {
			y[i] = float32(c.f[0]*v) + float32(c.f[1]*y[i])
		}
		w.store(y, &c.t[0], r, b.C0, b.C1)
	}
}

// muonStep moves weights against Y.
func muonStep(c *call, w *worker, b block) {
	p16, rest, k := &c.t[2], &c.t[3], &c.step
	for r := b.R0; r < b.R1; r++ {
		x := w.load(1, &c.t[1], r, b.C0, b.C1)
		p, low := w.joined(0, &c.t[0], rest, r, b)
		for i, v := range x {
			if c.a.Masked && p[i] == 0 {
				continue
			}
			p[i] = float32(k.Keep*p[i]) - float32(k.Step*v)
		}
		switch {
		case low != nil:
			w.v.Halve(c.t[0].row16(r, b.C0, b.C1), low, p)
		case c.t[0].DType == graph.BF16:
			w.v.Draw(c.t[0].row16(r, b.C0, b.C1), p, uint32(c.a.First+r*c.t[0].Cols+b.C0), c.keys[0][0], c.keys[0][1])
		}
		if !p16.Absent() {
			for i, y := 0, p16.row16(r, b.C0, b.C1); i < len(y); i++ {
				y[i], _ = float16.Halves(p[i])
			}
		}
	}
}
