package graph

import (
	"fmt"
	"math"
)

// Muon's products (Jordan et al., kellerjordan.github.io/posts/muon). Let X be R x C, s the lesser extent and n the greater.
// Five steps of a Newton-Schulz iteration, X = (aI + bG + cG²) X with G = X X' (on the right where s is C), bring its
// singular values from between 0 and 1 near 1: they need not arrive there.
//
// What is stored is Y, X over a to the number of steps done: then Y is what the sums of a product begin with, and Y + PY, P = (b/a)G
// + (c/a)G², the next one. In bf16 the sum aI + bG + cG² would lose the lower bits of what is added to the diagonal.

// MuonSteps is the number of steps.
const MuonSteps = 5

// MuonCoefficients are a, b and c, those of torch.optim.Muon.
var MuonCoefficients = [3]float64{3.4445, -4.7750, 2.0315}

// MuonPolynomial returns what H = Y Y' and H² are multiplied by in P at a step, from 0 on.
func MuonPolynomial(step int) (linear, square float64) {
	a := MuonCoefficients[0]
	of := func(power int) float64 { return math.Pow(a, float64(power*step-1)) }
	return MuonCoefficients[1] * of(2), MuonCoefficients[2] * of(4)
}

// MuonGain returns what Y is multiplied by after the last step.
func MuonGain() float64 { return math.Pow(MuonCoefficients[0], MuonSteps) }

// MuonEps is the least norm that X is divided by.
const MuonEps = 1e-7

// MuonPlaces says where the matrices of an update are in its operand work, in elements from its start, be they fp32 or bf16. Each
// begins at a multiple of 64 bytes.
type MuonPlaces struct {
	Y, Next    int // R x C: Y, and Y after a step
	Gram, Poly int // s x s: H, and P
	Norm       int // one number in fp32, the norm of Y before the first step
	Len        int
}

// MuonPlacesOf returns them for a matrix.
func MuonPlacesOf(rows, cols int) (w MuonPlaces) {
	const align = 32 // elements of bf16
	take := func(n int) (at int) {
		at = w.Len
		w.Len += (n + align - 1) / align * align
		return at
	}
	side := min(rows, cols)
	w.Y, w.Next = take(rows*cols), take(rows*cols)
	w.Gram, w.Poly = take(side*side), take(side*side)
	w.Norm = take(2)
	return w
}

// muonFLOPs counts G and G² once, though they are symmetric: half of their elements are computed by a processor that can.
func muonFLOPs(_ *Attr, d []Dim) int64 {
	rows, cols := int64(d[MuonP].Rows), int64(d[MuonP].Cols)
	s, n := min(rows, cols), max(rows, cols)
	return MuonSteps * (3*s*s*n + s*s*s)
}

// muonRoom: what the products need, and that the whole matrix is there.
func muonRoom(a *Attr, d []Dim) string {
	if need := MuonPlacesOf(d[MuonP].Rows, d[MuonP].Cols).Len; d[MuonWork].Cols != need {
		return fmt.Sprintf("work has %d elements, and a matrix of %d x %d takes %d", d[MuonWork].Cols, d[MuonP].Rows, d[MuonP].Cols, need)
	}
	return ""
}
