package graph

import "fmt"

// Muon's products (Jordan et al., kellerjordan.github.io/posts/muon). Let X be R x C, s the lesser extent and n the greater.
// Five steps of a Newton-Schulz iteration, X = (aI + bG + cG²) X with G = X X' (on the right where s is C), bring its
// singular values from between 0 and 1 near 1: they need not arrive there.

// MuonSteps is the number of steps.
const MuonSteps = 5

// MuonCoefficients are a, b and c, those of torch.optim.Muon.
var MuonCoefficients = [3]float64{3.4445, -4.7750, 2.0315}

// MuonEps is the least norm that X is divided by.
const MuonEps = 1e-7

// MuonPlaces says where the matrices of an update are in its operand work, in elements from its start. Each begins at a
// multiple of 64 bytes.
type MuonPlaces struct {
	X, Next    int // R x C: X, and X after a step
	Gram, Poly int // s x s: G, and aI + bG + cG²
	Norm       int // one number, the norm of X before the first step
	Len        int
}

// MuonPlacesOf returns them for a matrix.
func MuonPlacesOf(rows, cols int) (w MuonPlaces) {
	const align = 16 // elements of fp32
	take := func(n int) (at int) {
		at = w.Len
		w.Len += (n + align - 1) / align * align
		return at
	}
	side := min(rows, cols)
	w.X, w.Next = take(rows*cols), take(rows*cols)
	w.Gram, w.Poly = take(side*side), take(side*side)
	w.Norm = take(1)
	return w
}

func muonFLOPs(_ *Attr, d []Dim) int64 {
	rows, cols := int64(d[MuonP].Rows), int64(d[MuonP].Cols)
	s, n := min(rows, cols), max(rows, cols)
	return MuonSteps * (4*s*s*n + 2*s*s*s)
}

// muonRoom: what the products need, and that the whole matrix is there.
func muonRoom(a *Attr, d []Dim) string {
	if need := MuonPlacesOf(d[MuonP].Rows, d[MuonP].Cols).Len; d[MuonWork].Cols != need {
		return fmt.Sprintf("work has %d elements, and a matrix of %d x %d takes %d", d[MuonWork].Cols, d[MuonP].Rows, d[MuonP].Cols, need)
	}
	return ""
}
