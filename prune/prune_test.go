package prune

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/kernel/pool"
)

// problem is a matrix with the inputs it has: they are correlated, as those of a layer are.
type problem struct {
	w Matrix
	h []float32 // damped
}

func draw(rng *rand.Rand, rows, cols int) problem {
	p := problem{Matrix{rows, cols, make([]float32, rows*cols)}, make([]float32, cols*cols)}
	for i := range p.w.Data {
		p.w.Data[i] = float32(rng.NormFloat64())
	}
	mix := make([]float64, cols*cols)
	for i := range mix {
		mix[i] = rng.NormFloat64() / math.Sqrt(float64(cols))
	}
	x, z := make([]float64, cols), make([]float64, cols)
	for range 2 * cols {
		common := rng.NormFloat64()
		for i := range z {
			z[i] = rng.NormFloat64() + common
		}
		for i := range x {
			x[i] = 0.3*z[i] + dot(mix[i*cols:][:cols], z)
		}
		for i := range cols {
			for j := range cols {
				p.h[i*cols+j] += float32(x[i] * x[j])
			}
		}
	}
	Damp(p.h, cols)
	return p
}

// pruned returns a copy of the weights after f, and what changed.
func (p problem) pruned(f func(w Matrix)) (w, change Matrix) {
	w, change = p.w, p.w
	w.Data = slices.Clone(p.w.Data)
	f(w)
	change.Data = slices.Clone(w.Data)
	for i := range change.Data {
		change.Data[i] -= p.w.Data[i]
	}
	return w, change
}

// patterns are those that tests use, with a number of inputs that has incomplete blocks.
var patterns = []string{"0.5", "0.7", "2:4", "1:3", "0.013"}

// TestFactor: the factor is upper triangular, and its transpose times itself is the inverse.
func TestFactor(t *testing.T) {
	const n = 37
	p := draw(testkit.Rand(t), 1, n)
	u, err := Factor(p.h, n)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		for j := range n {
			if j < i && u.at(i, j) != 0 {
				t.Fatalf("U[%d,%d] is %v", i, j, u.at(i, j))
			}
			sum := 0.0
			for k := range n { // row i of U^T.U.h
				inverse := 0.0
				for l := range n {
					inverse += u.at(l, i) * u.at(l, k)
				}
				sum += inverse * float64(p.h[k*n+j])
			}
			want := 0.0
			if i == j {
				want = 1
			}
			if math.Abs(sum-want) > 1e-3 {
				t.Fatalf("U^T.U.h[%d,%d] is %v", i, j, sum)
			}
		}
	}
	p.h[0] = float32(math.NaN())
	if _, err := Factor(p.h, n); err == nil {
		t.Error("a NaN has a factor")
	}
}

// TestIdentity: what SparseGPT leaves is what it has changed: the sum of e^2 is tr(D.h.D^T), no less than the best weights in the
// same places leave. In nine of ten draws at least it leaves less than removing the smallest weights does, which is no theorem.
func TestIdentity(t *testing.T) {
	rng := testkit.Rand(t)
	workers := pool.New(2)
	defer workers.Close()
	g := gemm.New(workers)
	draws, worse := 0, 0
	for _, s := range patterns {
		for range testkit.Count(1, 2, 20) {
			p := draw(rng, 7, 12*(4+rng.IntN(10)))
			pattern, err := Parse(s)
			if err != nil || pattern.String() != s {
				t.Fatal(pattern, err)
			}
			u, err := Factor(p.h, p.w.Cols)
			if err != nil {
				t.Fatal(err)
			}
			var squares float64
			w, change := p.pruned(func(w Matrix) { squares = pattern.SparseGPT(g, w, u) })
			_, cruder := p.pruned(pattern.Magnitude)
			left, most := Energy(g, change, p.h), Energy(g, cruder, p.h)
			if e := math.Abs(squares/left - 1); e > 1e-4 {
				t.Errorf("%s of %d inputs: sum of e^2 %v, tr(D.h.D^T) %v", s, p.w.Cols, squares, left)
			}
			if least := p.refitted(w); least > left*(1+1e-4) {
				t.Errorf("%s of %d inputs: SparseGPT leaves %v, the best weights in its places %v", s, p.w.Cols, left, least)
			}
			if draws++; left >= most {
				worse++
			}
		}
	}
	if 10*worse > draws {
		t.Errorf("of %d draws, removing the smallest weights leaves less in %d", draws, worse)
	}
}

// refitted returns tr(D.h.D^T) for the weights, zero where w is, that make it least: of each row it solves h.w = h.w0 for
// what is left.
func (p problem) refitted(w Matrix) (sum float64) {
	n := p.w.Cols
	inverse := invert(p.h64(), n)
	for r := range w.Rows {
		var gone []int
		for c, v := range w.row(r) {
			if v == 0 {
				gone = append(gone, c)
			}
		}
		// The least change with w0 gone at some places is w0^T.(those of h^-1)^-1.w0 there.
		part := make([]float64, len(gone)*len(gone))
		for i, a := range gone {
			for j, b := range gone {
				part[i*len(gone)+j] = inverse[a*n+b]
			}
		}
		part = invert(part, len(gone))
		for i, a := range gone {
			for j, b := range gone {
				sum += float64(p.w.row(r)[a]) * part[i*len(gone)+j] * float64(p.w.row(r)[b])
			}
		}
	}
	return sum
}

func (p problem) h64() []float64 {
	h := make([]float64, len(p.h))
	for i, v := range p.h {
		h[i] = float64(v)
	}
	return h
}

// invert inverts a positive definite matrix, by Gauss and Jordan.
func invert(a []float64, n int) []float64 {
	b := make([]float64, n*n)
	for i := range n {
		b[i*n+i] = 1
	}
	for k := range n {
		pivot := a[k*n+k]
		for j := range n {
			a[k*n+j] /= pivot
			b[k*n+j] /= pivot
		}
		for i := range n {
			if f := a[i*n+k]; i != k && f != 0 {
				for j := range n {
					a[i*n+j] -= f * a[k*n+j]
					b[i*n+j] -= f * b[k*n+j]
				}
			}
		}
	}
	return b
}

// TestPatterns: as many weights are zero as the pattern says, of the matrix or of each group, whichever method; and cores do
// not change a bit.
func TestPatterns(t *testing.T) {
	const rows, cols = 9, 276
	p := draw(testkit.Rand(t), rows, cols)
	u, err := Factor(p.h, cols)
	if err != nil {
		t.Fatal(err)
	}
	var one, two *gemm.Engine
	for n, g := range map[int]**gemm.Engine{1: &one, 3: &two} {
		workers := pool.New(n)
		defer workers.Close()
		*g = gemm.New(workers)
	}
	for _, s := range patterns {
		pattern, err := Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := p.pruned(func(w Matrix) { pattern.SparseGPT(one, w, u) })
		b, _ := p.pruned(func(w Matrix) { pattern.SparseGPT(two, w, u) })
		if !slices.Equal(a.Data, b.Data) {
			t.Errorf("%s: bits depend on the cores", s)
		}
		m, _ := p.pruned(pattern.Magnitude)
		for method, w := range map[string]Matrix{"sparsegpt": a, "magnitude": m} {
			size, want := len(w.Data), pattern.gone(len(w.Data))
			if pattern.Of > 0 {
				size, want = pattern.Of, pattern.Of-pattern.Keep
			}
			for at := 0; at < len(w.Data); at += size {
				zeros := 0
				for _, v := range w.Data[at : at+size] {
					if v == 0 {
						zeros++
					}
				}
				if zeros != want {
					t.Fatalf("%s %s: %d zeros of %d, want %d", method, s, zeros, size, want)
				}
			}
		}
	}
}

// TestParse: what is no pattern is refused with a hint, and so is a matrix that groups do not divide.
func TestParse(t *testing.T) {
	for _, s := range []string{"", "0", "1", "-1", "1.5", "nan", "4:4", "0:4", "4:2", "2:", ":4", "2:129", "50%"} {
		if p, err := Parse(s); err == nil {
			t.Errorf("%q is %v", s, p)
		}
	}
	p, err := Parse("2:4")
	if err != nil || p.Check(8) != nil || p.Check(6) == nil {
		t.Error(err, p.Check(8), p.Check(6))
	}
}

// TestNoInputs: an expert that no token went to loses its smallest weights, and keeps the others' bits.
func TestNoInputs(t *testing.T) {
	p := draw(testkit.Rand(t), 5, 140)
	clear(p.h)
	Damp(p.h, 140)
	u, err := Factor(p.h, 140)
	if err != nil {
		t.Fatal(err)
	}
	workers := pool.New(1)
	defer workers.Close()
	pattern := Pattern{Keep: 1, Of: 2}
	a, _ := p.pruned(func(w Matrix) { pattern.SparseGPT(gemm.New(workers), w, u) })
	b, _ := p.pruned(pattern.Magnitude)
	if !slices.Equal(a.Data, b.Data) {
		t.Error("without inputs SparseGPT is not magnitude")
	}
}
