package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/kernel/pool"
)

// problem is a product with all that surrounds it: operands inside larger arrays, so that a touch beyond them shows.
type problem struct {
	form     Form
	m, n, k  int
	a, b, c  Matrix
	init     Init
	guard    []float32 // the whole array around C before the product
	cStorage []float32
}

// newProblem makes random operands with random strides and unaligned beginnings.
func newProblem(r *rand.Rand, form Form, m, n, k int) *problem {
	p := &problem{form: form, m: m, n: n, k: k}
	ra, ca, rb, cb := m, k, k, n
	switch form {
	case NT:
		rb, cb = n, k
	case TN:
		ra, ca = k, m
	}
	p.a, _ = randomMatrix(r, ra, ca)
	p.b, _ = randomMatrix(r, rb, cb)
	p.c, p.cStorage = randomMatrix(r, m, n)
	if r.IntN(2) == 0 {
		p.init.Bias = randomSlice(r, n)
	}
	switch r.IntN(3) {
	case 0:
		p.init.Residual, _ = randomMatrix(r, m, n)
	case 1:
		p.init.Residual = p.c
	}
	p.guard = slices.Clone(p.cStorage)
	return p
}

func randomSlice(r *rand.Rand, n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = float32(r.NormFloat64())
	}
	return s
}

func randomMatrix(r *rand.Rand, rows, cols int) (Matrix, []float32) {
	stride := cols + r.IntN(20)*r.IntN(2)
	begin := r.IntN(20)
	all := randomSlice(r, begin+max(0, rows-1)*stride+cols+20)
	end := begin
	if rows > 0 {
		end += (rows-1)*stride + cols
	}
	return Matrix{all[begin:end:end], stride}, all
}

// sub returns the part of a matrix from row i and column j on.
func (m Matrix) sub(i, j int) Matrix {
	return Matrix{m.Data[min(i*m.Stride+j, len(m.Data)):], m.Stride}
}

// reset restores C.
func (p *problem) reset() { copy(p.cStorage, p.guard) }

// gemm is what an Engine and a Serial have in common.
type gemmer interface {
	Gemm(form Form, m, n, k int, a, b, c Matrix, init Init)
}

// run computes the product and returns a copy of everything around C.
func (p *problem) run(g gemmer) []float32 {
	p.reset()
	g.Gemm(p.form, p.m, p.n, p.k, p.a, p.b, p.c, p.init)
	return slices.Clone(p.cStorage)
}

// at returns the operands of one product.
func (p *problem) at(i, j, l int) (x, y float32) {
	switch p.form {
	case NT:
		return p.a.Data[i*p.a.Stride+l], p.b.Data[j*p.b.Stride+l]
	case TN:
		return p.a.Data[l*p.a.Stride+i], p.b.Data[l*p.b.Stride+j]
	}
	return p.a.Data[i*p.a.Stride+l], p.b.Data[l*p.b.Stride+j]
}

// start returns what the sum (i,j) begins with. The problem must be reset.
func (p *problem) start(i, j int) float32 {
	var s float32
	if p.init.Residual.Data != nil {
		s = p.init.Residual.Data[i*p.init.Residual.Stride+j]
	}
	if p.init.Bias != nil {
		s += p.init.Bias[j]
	}
	return s
}

// chain computes one sum as the law says, with a correctly rounded fused multiply-add.
func (p *problem) chain(i, j int) float32 {
	s := p.start(i, j)
	for l := range p.k {
		x, y := p.at(i, j, l)
		s = fma32(x, y, s)
	}
	return s
}

// fma32 rounds x*y+z once. The sum of the exact product and z is rounded to odd in float64, after which rounding to
// float32 is correct (Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008).
func fma32(x, y, z float32) float32 {
	p, q := float64(x)*float64(y), float64(z)
	s := p + q
	t := s - p
	if rest := (p - (s - t)) + (q - t); rest != 0 && math.Float64bits(s)&1 == 0 {
		if (rest > 0) == (s > 0) {
			s = math.Float64frombits(math.Float64bits(s) + 1)
		} else {
			s = math.Float64frombits(math.Float64bits(s) - 1)
		}
	}
	return float32(s)
}

func seeded(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// size draws a dimension: small, prime, a multiple of the tile, or empty.
func size(r *rand.Rand, most int) int {
	switch r.IntN(8) {
	case 0:
		return r.IntN(3)
	case 1:
		return min(most, []int{7, 13, 31, 61, 127, 257, 509}[r.IntN(7)])
	case 2:
		return min(most, []int{16, 32, 64, 14, 28, 6, 48, 128, 256}[r.IntN(9)])
	}
	return r.IntN(most)
}

// everywhere runs a test with each instruction set of the machine.
func everywhere(t *testing.T, test func(t *testing.T, x *isa)) {
	for _, x := range sets() {
		t.Run(x.name, func(t *testing.T) { test(t, x) })
	}
}

// TestReference compares every element with a float64 sum, within the error bound of a chain of n roundings, and sees
// that nothing around C changes.
func TestReference(t *testing.T) {
	everywhere(t, func(t *testing.T, x *isa) {
		r := seeded(t)
		p := pool.New(3)
		defer p.Close()
		e := newEngine(p, x)
		s := &Serial{isa: x}
		for range 150 {
			q := newProblem(r, Form(r.IntN(3)), size(r, 90), size(r, 130), size(r, 150))
			check(t, q, q.run(e))
			check(t, q, q.run(s))
		}
	})
}

func check(t *testing.T, p *problem, got []float32) {
	t.Helper()
	p.reset()
	inside := make([]bool, len(got))
	begin := len(p.cStorage) - 20 - len(p.c.Data)
	for i := range p.m {
		for j := range p.n {
			exact, size := float64(p.start(i, j)), math.Abs(float64(p.start(i, j)))
			for l := range p.k {
				x, y := p.at(i, j, l)
				exact += float64(x) * float64(y)
				size += math.Abs(float64(x) * float64(y))
			}
			at := begin + i*p.c.Stride + j
			inside[at] = true
			if e := math.Abs(float64(got[at]) - exact); !(e <= float64(p.k+1)*0x1p-24*size*1.01) {
				t.Fatalf("%s: C[%d,%d] = %v, want %v, error %.3g", p, i, j, got[at], exact, e)
			}
		}
	}
	for i, in := range inside {
		if !in && got[i] != p.guard[i] {
			t.Fatalf("%s: wrote outside C, %d elements from its beginning", p, i-begin)
		}
	}
}

func (p *problem) String() string {
	return fmt.Sprintf("%s %dx%dx%d strides %d %d %d bias %t residual %t", p.form, p.m, p.n, p.k, p.a.Stride, p.b.Stride,
		p.c.Stride, p.init.Bias != nil, p.init.Residual.Data != nil)
}

// TestLaw compares bits with the chain of fused multiply-adds that the package promises.
func TestLaw(t *testing.T) {
	everywhere(t, func(t *testing.T, x *isa) {
		if x == &portable {
			t.Skip("rounds twice")
		}
		r := seeded(t)
		p := pool.New(2)
		defer p.Close()
		e := newEngine(p, x)
		for range 60 {
			q := newProblem(r, Form(r.IntN(3)), size(r, 80), size(r, 80), size(r, 600))
			got := q.run(e)
			q.reset()
			begin := len(got) - 20 - len(q.c.Data)
			for range 50 {
				if q.m == 0 || q.n == 0 {
					break
				}
				i, j := r.IntN(q.m), r.IntN(q.n)
				if want, got := q.chain(i, j), got[begin+i*q.c.Stride+j]; want != got {
					t.Fatalf("%s: C[%d,%d] = %x, want %x", q, i, j, got, want)
				}
			}
		}
	})
}

// TestSplit cuts products anywhere along m, n or k, and runs them on any number of workers: the bits stay.
func TestSplit(t *testing.T) {
	everywhere(t, func(t *testing.T, x *isa) {
		r := seeded(t)
		var engines []gemmer
		for _, workers := range []int{1, 2, 5} {
			p := pool.New(workers)
			defer p.Close()
			engines = append(engines, newEngine(p, x))
		}
		engines = append(engines, &Serial{isa: x})
		most := 700
		if x == &portable {
			most = 100
		}
		for range 40 {
			q := newProblem(r, Form(r.IntN(3)), size(r, most/3), size(r, most/2), size(r, most))
			want := q.run(engines[0])
			for _, e := range engines[1:] {
				if !slices.Equal(q.run(e), want) {
					t.Fatalf("%s: bits depend on the number of workers", q)
				}
			}
			for range 3 {
				q.reset()
				e := engines[r.IntN(len(engines))]
				axis := q.split(r, e)
				if !slices.Equal(q.cStorage, want) {
					t.Fatalf("%s: bits depend on a cut along %s", q, axis)
				}
			}
		}
	})
}

// split computes the product in two parts.
func (p *problem) split(r *rand.Rand, g gemmer) string {
	a, b, c, init, residual := p.a, p.b, p.c, p.init, p.init.Residual
	at := func(m Matrix, transposed bool, i, j int) Matrix {
		if transposed {
			i, j = j, i
		}
		return m.sub(i, j)
	}
	switch r.IntN(3) {
	case 0:
		i := r.IntN(p.m + 1)
		g.Gemm(p.form, i, p.n, p.k, a, b, c, init)
		if residual.Data != nil {
			init.Residual = residual.sub(i, 0)
		}
		g.Gemm(p.form, p.m-i, p.n, p.k, at(a, p.form == TN, i, 0), b, c.sub(i, 0), init)
		return fmt.Sprint("m at ", i)
	case 1:
		j := r.IntN(p.n + 1)
		g.Gemm(p.form, p.m, j, p.k, a, b, c, init)
		if init.Bias != nil {
			init.Bias = init.Bias[j:]
		}
		if residual.Data != nil {
			init.Residual = residual.sub(0, j)
		}
		g.Gemm(p.form, p.m, p.n-j, p.k, a, at(b, p.form == NT, 0, j), c.sub(0, j), init)
		return fmt.Sprint("n at ", j)
	default:
		l := r.IntN(p.k + 1)
		g.Gemm(p.form, p.m, p.n, l, a, b, c, init)
		g.Gemm(p.form, p.m, p.n, p.k-l, at(a, p.form == TN, 0, l), at(b, p.form == NT, l, 0), c, Init{Residual: c})
		return fmt.Sprint("k at ", l)
	}
}

// TestInstructionSets compares the bits of the assembly routines.
func TestInstructionSets(t *testing.T) {
	r := seeded(t)
	list := sets()
	for range 60 {
		q := newProblem(r, Form(r.IntN(3)), size(r, 200), size(r, 200), size(r, 500))
		want := q.run(&Serial{isa: list[0]})
		for _, x := range list[1 : len(list)-1] {
			if !slices.Equal(q.run(&Serial{isa: x}), want) {
				t.Fatalf("%s: %s and %s differ", q, list[0].name, x.name)
			}
		}
	}
}

func TestNoAllocation(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	e := New(p)
	r := seeded(t)
	q := newProblem(r, NT, 100, 200, 300)
	run := func() { e.Gemm(q.form, q.m, q.n, q.k, q.a, q.b, q.c, q.init) }
	run()
	p.Run(2, pool.Func(func(_, w int) { e.workers.Get(w) }))
	if n := testing.AllocsPerRun(50, run); n > 0.1 { // a worker may come late to its first task
		t.Errorf("%v allocations per product, want 0", n)
	}
}

func TestTooSmall(t *testing.T) {
	s := NewSerial()
	ok := Matrix{make([]float32, 12), 4}
	for name, call := range map[string]func(){
		"A":        func() { s.Gemm(NN, 4, 4, 3, ok, ok, ok, Init{}) },
		"stride":   func() { s.Gemm(NN, 2, 4, 3, ok, Matrix{ok.Data, 3}, ok, Init{}) },
		"bias":     func() { s.Gemm(NN, 2, 4, 3, ok, ok, ok, Init{Bias: make([]float32, 3)}) },
		"residual": func() { s.Gemm(NN, 3, 4, 3, ok, ok, ok, Init{Residual: Matrix{make([]float32, 11), 4}}) },
		"negative": func() { s.Gemm(NN, -1, 4, 3, ok, ok, ok, Init{}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			call()
		}()
	}
}
