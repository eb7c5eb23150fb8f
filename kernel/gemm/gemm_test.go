package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel/pool"
)

// problem is a product whose operands lie inside larger arrays, so that writes beyond them are detected.
type problem struct {
	form    Form
	m, n, k int
	a, b, c Matrix
	init    Init

	storage Matrix // the whole array around C
	before  Matrix // a copy of it
}

// kinds says which operands are bf16.
type kinds struct{ a, b, c, residual bool }

func randomKinds(r *rand.Rand) kinds {
	if r.IntN(3) == 0 {
		return kinds{}
	}
	bit := func() bool { return r.IntN(3) > 0 }
	return kinds{bit(), bit(), bit(), bit()}
}

// newProblem makes random operands with random strides and unaligned beginnings.
func newProblem(r *rand.Rand, form Form, m, n, k int, half kinds) *problem {
	p := &problem{form: form, m: m, n: n, k: k}
	ra, ca, rb, cb := m, k, k, n
	switch form {
	case NT:
		rb, cb = n, k
	case TN, TNB:
		ra, ca = k, m
	}
	p.a, _ = randomMatrix(r, ra, ca, half.a)
	p.b, _ = randomMatrix(r, rb, cb, half.b)
	p.c, p.storage = randomMatrix(r, m, n, half.c)
	if r.IntN(2) == 0 {
		p.init.Bias = randomSlice(r, n)
	}
	switch r.IntN(3) {
	case 0:
		p.init.Residual, _ = randomMatrix(r, m, n, half.residual)
	case 1:
		p.init.Residual = p.c
	}
	p.before = Matrix{Data: slices.Clone(p.storage.Data), Half: slices.Clone(p.storage.Half)}
	return p
}

func randomSlice(r *rand.Rand, n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = float32(r.NormFloat64())
	}
	return s
}

const behind = 20 // elements of storage after a matrix

// randomMatrix returns a matrix and the whole array it lies in.
func randomMatrix(r *rand.Rand, rows, cols int, half bool) (m, storage Matrix) {
	m.Stride = cols + r.IntN(20)*r.IntN(2)
	if r.IntN(10) == 0 && cols <= 1024 && rows <= 100 {
		m.Stride = 1024 // rows that begin in the same cache set are treated specially
	}
	begin, length := r.IntN(20), 0
	if rows > 0 {
		length = (rows-1)*m.Stride + cols
	}
	end := begin + length
	all := randomSlice(r, end+behind)
	if !half {
		m.Data = all[begin:end:end]
		return m, Matrix{Data: all}
	}
	narrowed := make([]uint16, len(all))
	for i, x := range all {
		narrowed[i] = float16.ToBF16(x)
	}
	m.Half = narrowed[begin:end:end]
	return m, Matrix{Half: narrowed}
}

// at returns an element by its place in the array.
func (m Matrix) at(i int) float32 {
	if m.Half != nil {
		return math.Float32frombits(uint32(m.Half[i]) << 16)
	}
	return m.Data[i]
}

// sub returns the part of a matrix from row i and column j on.
func (m Matrix) sub(i, j int) Matrix {
	i = i*m.Stride + j
	if m.Half != nil {
		return Matrix{Half: m.Half[min(i, len(m.Half)):], Stride: m.Stride}
	}
	return Matrix{Data: m.Data[min(i, len(m.Data)):], Stride: m.Stride}
}

// bits returns the bits of all elements.
func (m Matrix) bits() []uint32 {
	var b []uint32
	for _, x := range m.Data {
		b = append(b, math.Float32bits(x))
	}
	for _, x := range m.Half {
		b = append(b, uint32(x))
	}
	return b
}

// reset restores C.
func (p *problem) reset() {
	copy(p.storage.Data, p.before.Data)
	copy(p.storage.Half, p.before.Half)
}

// place returns where in the storage C[i,j] is.
func (p *problem) place(i, j int) int {
	return len(p.storage.Data) + len(p.storage.Half) - behind - len(p.c.Data) - len(p.c.Half) + i*p.c.Stride + j
}

// gemmer is implemented by Engine and Serial.
type gemmer interface {
	Gemm(form Form, m, n, k int, a, b, c Matrix, init Init)
}

// run computes the product and returns the bits of everything around C.
func (p *problem) run(g gemmer) []uint32 {
	p.reset()
	g.Gemm(p.form, p.m, p.n, p.k, p.a, p.b, p.c, p.init)
	return p.storage.bits()
}

// factors returns the operands of one multiplication.
func (p *problem) factors(i, j, l int) (x, y float32) {
	switch p.form {
	case NT:
		return p.a.at(i*p.a.Stride + l), p.b.at(j*p.b.Stride + l)
	case TN, TNB:
		return p.a.at(l*p.a.Stride + i), p.b.at(l*p.b.Stride + j)
	}
	return p.a.at(i*p.a.Stride + l), p.b.at(l*p.b.Stride + j)
}

// start returns the initial value of sum (i,j). The problem must be reset.
func (p *problem) start(i, j int) float32 {
	var s float32
	if res := p.init.Residual; res.Data != nil || res.Half != nil {
		s = res.at(i*res.Stride + j)
	}
	if p.init.Bias != nil {
		s += p.init.Bias[j]
	}
	return s
}

// chain computes one sum as the law says, with a correctly rounded fused multiply-add, and returns its bits in C.
func (p *problem) chain(i, j int) uint32 {
	s := p.start(i, j)
	for l := range p.k {
		x, y := p.factors(i, j, l)
		s = fma32(x, y, s)
	}
	if p.c.Half != nil {
		return uint32(float16.ToBF16(s))
	}
	return math.Float32bits(s)
}

// inPairs reports whether x computes the product in pairs of bf16.
func (p *problem) inPairs(x *isa) bool {
	return p.a.Half != nil && p.b.Half != nil && x.dot.wide != nil
}

// onTiles reports whether x computes the product on tile registers.
func (p *problem) onTiles(x *isa) bool {
	return p.a.Half != nil && p.b.Half != nil && p.form != TN && x.tiles[0][0] != nil && p.k > 0
}

// unit returns the number that a cut of k must be a multiple of.
func (p *problem) unit(x *isa) int {
	switch {
	case p.onTiles(x):
		return 2 * blockPairs
	case p.inPairs(x):
		return 2
	}
	return 1
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
	seed := testkit.Seed(t)
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

// everywhere runs a test with each instruction set of the machine, and with tile registers.
func everywhere(t *testing.T, test func(t *testing.T, x *isa)) {
	list := sets()
	if x := emulated(); x != nil {
		list = append(list, x)
	}
	for _, x := range list {
		t.Run(x.name, func(t *testing.T) { test(t, x) })
	}
}

// TestReference compares every element with a float64 sum, within the error bound of a chain of n roundings, and
// checks that nothing around C changes.
func TestReference(t *testing.T) {
	everywhere(t, func(t *testing.T, x *isa) {
		r := seeded(t)
		p := pool.New(3)
		defer p.Close()
		e := newEngine(p, x)
		s := &Serial{isa: x}
		for range testkit.Count(30, 150, 400) {
			q := newProblem(r, Form(r.IntN(4)), size(r, 90), size(r, 130), size(r, 150), randomKinds(r))
			check(t, q, e)
			check(t, q, s)
		}
	})
}

// TestSmallB computes products of whole panels and a small B, several tiles per call, with any number of rows, so
// that calls end anywhere.
func TestSmallB(t *testing.T) {
	everywhere(t, func(t *testing.T, x *isa) {
		r := seeded(t)
		s := &Serial{isa: x}
		for range testkit.Count(12, 60, 200) {
			n := 16 * (1 + r.IntN(6))
			form, k := []Form{NN, TN}[r.IntN(2)], 1+r.IntN(min(smallB/n, 150))
			m := 4 + r.IntN(max(1, 1_000_000/(n*k)))%1000
			check(t, newProblem(r, form, m, n, k, kinds{}), s)
		}
	})
}

func check(t *testing.T, p *problem, g gemmer) {
	t.Helper()
	p.run(g)
	got := Matrix{Data: slices.Clone(p.storage.Data), Half: slices.Clone(p.storage.Half)}
	p.reset()
	inside := make([]bool, len(got.bits()))
	for i := range p.m {
		for j := range p.n {
			exact, size := float64(p.start(i, j)), math.Abs(float64(p.start(i, j)))
			for l := range p.k {
				x, y := p.factors(i, j, l)
				exact += float64(x) * float64(y)
				size += math.Abs(float64(x) * float64(y))
			}
			bound := float64(p.k+1) * 0x1p-24 * size * 1.01
			if p.c.Half != nil {
				bound += 0x1p-8 * (math.Abs(exact) + bound)
			}
			at := p.place(i, j)
			inside[at] = true
			if e := math.Abs(float64(got.at(at)) - exact); !(e <= bound) {
				t.Fatalf("%s: C[%d,%d] = %v, want %v, error %.3g", p, i, j, got.at(at), exact, e)
			}
		}
	}
	before := p.before.bits()
	for i, b := range got.bits() {
		if !inside[i] && b != before[i] {
			t.Fatalf("%s: wrote outside C, %d elements from its beginning", p, i-p.place(0, 0))
		}
	}
}

func (p *problem) String() string {
	return fmt.Sprintf("%s %dx%dx%d strides %d %d %d bf16 %t %t %t bias %t residual %t", p.form, p.m, p.n, p.k, p.a.Stride,
		p.b.Stride, p.c.Stride, p.a.Half != nil, p.b.Half != nil, p.c.Half != nil, p.init.Bias != nil,
		p.init.Residual.Stride != 0)
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
			q := newProblem(r, Form(r.IntN(4)), size(r, 160), size(r, 80), size(r, 600), randomKinds(r))
			if q.unit(x) > 1 || q.m == 0 || q.n == 0 {
				continue
			}
			got := q.run(e)
			q.reset()
			for range 50 {
				i, j := r.IntN(q.m), r.IntN(q.n)
				if want, got := q.chain(i, j), got[q.place(i, j)]; want != got {
					t.Fatalf("%s: C[%d,%d] = %x, want %x", q, i, j, got, want)
				}
			}
		}
	})
}

// TestSplit cuts products anywhere along m, n or k and runs them on any number of workers: the bits are equal.
func TestSplit(t *testing.T) {
	everywhere(t, func(t *testing.T, x *isa) {
		r := seeded(t)
		var engines []gemmer
		for _, workers := range []int{1, 2, 5} {
			p := pool.New(workers)
			defer p.Close()
			engines = append(engines, newEngine(p, x))
		}
		most := 700
		if x == &portable || x == emulated() {
			most = 100
		}
		for range 50 {
			q := newProblem(r, Form(r.IntN(4)), size(r, most/2), size(r, most/2), size(r, most), randomKinds(r))
			engines := append(engines, &Serial{isa: x})
			want := q.run(engines[0])
			for _, e := range engines[1:] {
				if !slices.Equal(q.run(e), want) {
					t.Fatalf("%s: bits depend on the number of workers", q)
				}
			}
			for range 3 {
				q.reset()
				cut := q.split(r, engines[r.IntN(len(engines))], x)
				if !slices.Equal(q.storage.bits(), want) {
					t.Fatalf("%s: bits depend on a cut of %s", q, cut)
				}
			}
		}
	})
}

// split computes the product in two parts.
func (p *problem) split(r *rand.Rand, g gemmer, x *isa) string {
	a, b, c, init, residual := p.a, p.b, p.c, p.init, p.init.Residual
	at := func(m Matrix, transposed bool, i, j int) Matrix {
		if transposed {
			i, j = j, i
		}
		return m.sub(i, j)
	}
	switch axis := r.IntN(3); {
	case axis == 0:
		i := r.IntN(p.m + 1)
		g.Gemm(p.form, i, p.n, p.k, a, b, c, init)
		if residual.Stride != 0 {
			init.Residual = residual.sub(i, 0)
		}
		g.Gemm(p.form, p.m-i, p.n, p.k, at(a, p.form.transposedA(), i, 0), b, c.sub(i, 0), init)
		return fmt.Sprint("m at ", i)
	case axis == 1 || p.c.Half != nil: // sums rounded to bf16 cannot be continued
		j := r.IntN(p.n + 1)
		g.Gemm(p.form, p.m, j, p.k, a, b, c, init)
		if init.Bias != nil {
			init.Bias = init.Bias[j:]
		}
		if residual.Stride != 0 {
			init.Residual = residual.sub(0, j)
		}
		g.Gemm(p.form, p.m, p.n-j, p.k, a, at(b, p.form == NT, 0, j), c.sub(0, j), init)
		return fmt.Sprint("n at ", j)
	default:
		l := r.IntN(p.k + 1)
		l -= l % p.unit(x)
		g.Gemm(p.form, p.m, p.n, l, a, b, c, init)
		g.Gemm(p.form, p.m, p.n, p.k-l, at(a, p.form.transposedA(), 0, l), at(b, p.form == NT, l, 0), c, Init{Residual: c})
		return fmt.Sprint("k at ", l)
	}
}

// TestInstructionSets compares the bits of the assembly routines.
func TestInstructionSets(t *testing.T) {
	r := seeded(t)
	list := sets()
	for range 60 {
		q := newProblem(r, Form(r.IntN(4)), size(r, 200), size(r, 200), size(r, 500), randomKinds(r))
		if q.inPairs(list[0]) || q.onTiles(list[0]) {
			continue
		}
		want := q.run(&Serial{isa: list[0]})
		for _, x := range list[1:] {
			if x != &portable && !q.inPairs(x) && !slices.Equal(q.run(&Serial{isa: x}), want) {
				t.Fatalf("%s: %s and %s differ", q, list[0].name, x.name)
			}
		}
	}
}

// TestConversions compares the vector conversions with the plain ones on all kinds of numbers.
func TestConversions(t *testing.T) {
	everywhere(t, func(t *testing.T, x *isa) {
		r := seeded(t)
		s := &Serial{isa: x}
		special := []uint32{0, 1 << 31, 1, 0x7f800000, 0xff800000, 0x7f800001, 0x7fffffff, 0xffc00000, 0x7f7fffff, 0x3f808000, 0x3f818000, 0x3f808001}
		for range 30 {
			rows, cols, gap := 1+r.IntN(3), r.IntN(100), r.IntN(5)
			n := rows * (cols + gap)
			in, out, back := make([]float32, n+1), make([]uint16, n+1), make([]float32, n+1)
			for i := range in {
				in[i] = math.Float32frombits(r.Uint32())
				if r.IntN(3) == 0 {
					in[i] = math.Float32frombits(special[r.IntN(len(special))])
				}
			}
			a := Matrix{Data: in, Stride: cols + gap}.operand("in", rows, cols)
			b := Matrix{Half: out, Stride: cols + gap}.operand("out", rows, cols)
			c := Matrix{Data: back, Stride: cols + gap}.operand("back", rows, cols)
			s.narrow(b, a, rows, cols)
			s.widen(c, b, rows, cols)
			for i := range in {
				want := uint16(0)
				if i < n && i%(cols+gap) < cols {
					want = float16.ToBF16(in[i])
				}
				if out[i] != want || math.Float32bits(back[i]) != uint32(want)<<16 {
					t.Fatalf("%x became %x and %x, want %x", math.Float32bits(in[i]), out[i], math.Float32bits(back[i]), want)
				}
			}
		}
	})
}

// TestConcurrent runs products from several goroutines on one Engine.
func TestConcurrent(t *testing.T) {
	p := pool.New(3)
	defer p.Close()
	e := New(p)
	var all sync.WaitGroup
	r := seeded(t)
	for range 4 {
		q := newProblem(r, Form(r.IntN(4)), size(r, 100), size(r, 300), size(r, 200), randomKinds(r))
		want := q.run(New(p))
		all.Go(func() {
			for range 50 {
				if !slices.Equal(q.run(e), want) {
					t.Errorf("%s: bits depend on what else runs", q)
				}
			}
		})
	}
	all.Wait()
}

func TestNoAllocation(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	r := seeded(t)
	for _, half := range []kinds{{}, {true, true, true, true}, {true, false, false, true}} {
		e := New(p)
		q := newProblem(r, NT, 100, 200, 300, half)
		run := func() { e.Gemm(q.form, q.m, q.n, q.k, q.a, q.b, q.c, q.init) }
		for range 20 {
			run()
		}
		if n := testing.AllocsPerRun(50, run); n > 0.1 { // a worker may get its first task late
			t.Errorf("%v allocations per product, want 0", n)
		}
	}
}

func TestTooSmall(t *testing.T) {
	s := NewSerial()
	ok := Matrix{Data: make([]float32, 12), Stride: 4}
	for name, call := range map[string]func(){
		"A":        func() { s.Gemm(NN, 4, 4, 3, ok, ok, ok, Init{}) },
		"stride":   func() { s.Gemm(NN, 2, 4, 3, ok, Matrix{Data: ok.Data, Stride: 3}, ok, Init{}) },
		"bias":     func() { s.Gemm(NN, 2, 4, 3, ok, ok, ok, Init{Bias: make([]float32, 3)}) },
		"residual": func() { s.Gemm(NN, 3, 4, 3, ok, ok, ok, Init{Residual: Matrix{Data: make([]float32, 11), Stride: 4}}) },
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

// TestEdges covers matrices of one row or one column, with and without gaps, and sums that end within a block.
func TestEdges(t *testing.T) {
	everywhere(t, func(t *testing.T, x *isa) {
		r := seeded(t)
		p := pool.New(2)
		defer p.Close()
		e := newEngine(p, x)
		for _, form := range []Form{NN, NT, TN, TNB} {
			for _, m := range []int{1, 2, 17, 33} {
				for _, n := range []int{1, 2, 17, 33} {
					for _, k := range []int{1, 2, 17, 31, 32, 33, 63, 95} {
						q := newProblem(r, form, m, n, k, kinds{a: true, b: r.IntN(4) > 0, c: r.IntN(2) == 0})
						check(t, q, e)
						want := q.run(e)
						q.reset()
						if cut := q.split(r, &Serial{isa: x}, x); !slices.Equal(q.storage.bits(), want) {
							t.Fatalf("%s: bits depend on a cut of %s", q, cut)
						}
					}
				}
			}
		}
	})
}
