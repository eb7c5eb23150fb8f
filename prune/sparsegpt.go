package prune

import (
	"errors"
	"math"

	"github.com/athanor-llm/athanor/kernel/gemm"
)

// block is how many inputs are gone through before the weights of those that follow are changed: enough for a product to
// be fast. It is also how many inputs share a choice of which weights go.
const block = 128

// damping is added to the diagonal of h, as a share of its mean: inputs that are multiples of each other, or never seen,
// else leave it without an inverse.
const damping = 0.01

// Upper is the factor U, upper triangular, with U^T.U the inverse of damped h.
type Upper struct {
	n    int
	data []float32 // [n, n]
}

func (u Upper) at(i, j int) float64 { return float64(u.data[i*u.n+j]) }

// Damp adds a hundredth of the mean of its diagonal to the diagonal of h [n, n]. Without any inputs it becomes the identity:
// then all inputs count alike.
func Damp(h []float32, n int) {
	mean := 0.0
	for i := range n {
		mean += float64(h[i*n+i]) / float64(n)
	}
	add := float32(damping * mean)
	if mean == 0 {
		add = 1
	}
	for i := range n {
		h[i*n+i] += add
	}
}

// Factor returns the factor for damped h [n, n], which is symmetric.
func Factor(h []float32, n int) (Upper, error) {
	// h = R.R^T with R upper triangular, from the last column to the first, so that all sums are over parts of rows. Then U
	// is the inverse of R.
	r := make([]float64, n*n)
	for i, v := range h {
		r[i] = float64(v)
	}
	for j := n - 1; j >= 0; j-- {
		tail := r[j*n+j+1 : (j+1)*n]
		pivot := r[j*n+j] - dot(tail, tail)
		if !(pivot > 0) {
			return Upper{}, errors.New("the products of its inputs have no inverse: they are not finite, or too large")
		}
		root := math.Sqrt(pivot)
		r[j*n+j] = root
		inRows(j, func(i int) { r[i*n+j] = (r[i*n+j] - dot(r[i*n+j+1:(i+1)*n], tail)) / root })
	}
	u := Upper{n, make([]float32, n*n)}
	inRows(n, func(i int) { invertRow(u.data[i*n:(i+1)*n], r, i, n) })
	return u, nil
}

// invertRow writes row i of the inverse of r, upper triangular.
func invertRow(u []float32, r []float64, i, n int) {
	row := make([]float64, n)
	row[i] = 1
	for k := i; k < n; k++ {
		row[k] /= r[k*n+k]
		x, from := row[k], r[k*n:(k+1)*n]
		for j := k + 1; j < n; j++ {
			row[j] -= x * from[j]
		}
	}
	for j := i; j < n; j++ {
		u[j] = float32(row[j])
	}
}

func dot(a, b []float64) (sum float64) {
	b = b[:len(a)]
	for i, x := range a {
		sum += x * b[i]
	}
	return sum
}

// SparseGPT sets weights to zero and changes the others. It returns the sum of the squares of what no weight could make up
// for: twice that is tr(D.h.D^T), where D is what has changed and h is damped.
func (p Pattern) SparseGPT(g *gemm.Engine, w Matrix, u Upper) float64 {
	step := block
	if p.Of > 0 {
		step = block / p.Of * p.Of
	}
	squares := make([]float64, w.Rows)
	left := make([]float32, w.Rows*step) // minus what weights of the block left, for the product
	for lo := 0; lo < w.Cols; lo += step {
		b := span{lo, min(lo+step, w.Cols)}
		gone := p.choose(w, u, b)
		width := b.hi - b.lo
		inRows(w.Rows, func(r int) {
			squares[r] += p.passBlock(w.row(r), u, b, gone[r*width:][:width], left[r*width:][:width])
		})
		if n := w.Cols - b.hi; n > 0 {
			rest := gemm.Matrix{Data: w.Data[b.hi:], Stride: w.Cols}
			g.Gemm(gemm.NN, w.Rows, n, width, gemm.Matrix{Data: left, Stride: width},
				gemm.Matrix{Data: u.data[b.lo*u.n+b.hi:], Stride: u.n}, rest, gemm.Init{Residual: rest})
		}
	}
	sum := 0.0
	for _, s := range squares {
		sum += s
	}
	return sum
}

// span is a range of inputs.
type span struct{ lo, hi int }

// choose marks the weights of a block that go, row by row: those that leave least. With groups they are chosen on the way.
func (p Pattern) choose(w Matrix, u Upper, b span) []bool {
	if p.Of > 0 {
		return make([]bool, w.Rows*(b.hi-b.lo))
	}
	n := p.gone(w.Rows*b.hi) - p.gone(w.Rows*b.lo)
	return smallest(w.Rows, b.lo, b.hi, n, func(r, c int) float64 { return leaves(w.row(r), u, c) })
}

// leaves returns the square of what weight c of a row leaves if it goes.
func leaves(row []float32, u Upper, c int) float64 {
	e := float64(row[c]) / u.at(c, c)
	return e * e
}

// passBlock goes through a block of a row, and returns the sum of the squares of what its weights leave. left gets minus what
// each leaves.
func (p Pattern) passBlock(row []float32, u Upper, b span, gone []bool, left []float32) (squares float64) {
	for c := b.lo; c < b.hi; c++ {
		if p.Of > 0 && c%p.Of == 0 {
			copy(gone[c-b.lo:], smallest(1, c, c+p.Of, p.Of-p.Keep, func(_, c int) float64 { return leaves(row, u, c) }))
		}
		left[c-b.lo] = 0
		if !gone[c-b.lo] {
			continue
		}
		e := float64(row[c]) / u.at(c, c)
		squares += e * e
		left[c-b.lo] = float32(-e)
		row[c] = 0
		for j := c + 1; j < b.hi; j++ {
			row[j] -= float32(e * u.at(c, j))
		}
	}
	return squares
}

// Energy returns tr(w.h.w^T): the sum of the squares of the outputs over the inputs that h [Cols, Cols] is of.
func Energy(g *gemm.Engine, w Matrix, h []float32) (sum float64) {
	product := make([]float32, len(w.Data))
	n := w.Cols
	g.Gemm(gemm.NN, w.Rows, n, n, gemm.Matrix{Data: w.Data, Stride: n}, gemm.Matrix{Data: h, Stride: n}, gemm.Matrix{Data: product, Stride: n}, gemm.Init{})
	for i, v := range product {
		sum += float64(v) * float64(w.Data[i])
	}
	return sum
}
