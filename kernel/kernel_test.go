package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel/pool"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// each runs f on random calls of every operator, in one subtest per operator. A
// failure reports the seed.
func each(t *testing.T, rounds int, f func(t *testing.T, s sample)) {
	for op := graph.Op(1); op < graph.NumOps; op++ {
		if op == graph.Copy || op.Info().Between {
			continue
		}
		t.Run(op.String(), func(t *testing.T) {
			for seed := range uint64(rounds) {
				m := &maker{Rand: rand.New(rand.NewPCG(seed, uint64(op))), mixed: seed%2 == 1, acc: seed%4 >= 2}
				s := cases[op](m)
				s.op = op
				if s.tol == 0 {
					s.tol = 1e-5
				}
				f(t, s)
				if t.Failed() {
					t.Fatalf("seed %d: %v", seed, s)
				}
			}
		})
	}
}

// copies returns deep copies of the tensors.
func copies(t []Tensor) []Tensor {
	t = slices.Clone(t)
	for i := range t {
		t[i].F32, t[i].BF16 = slices.Clone(t[i].F32), slices.Clone(t[i].BF16)
		t[i].I32, t[i].F64 = slices.Clone(t[i].I32), slices.Clone(t[i].F64)
		t[i].I8 = slices.Clone(t[i].I8)
	}
	return t
}

// blank sets all elements to 0, and leaves the gaps.
func blank(t *Tensor) {
	for r := range t.Rows {
		for c := range t.Cols {
			t.Set(r, c, 0)
		}
	}
}

// clone copies the operands and poisons those that are only written.
func (s sample) clone() []Tensor {
	t := copies(s.t)
	for i := range t {
		access := s.op.Info().Args[i].Access
		if access == graph.Write || access == graph.Sum && !s.attr.Acc {
			for r := range t[i].Rows {
				for c := range t[i].Cols {
					t[i].Set(r, c, poison)
				}
			}
		}
	}
	return t
}

// sameBits compares all memory of the operands, gaps included.
func sameBits(a, b []Tensor) error {
	for i := range a {
		x, y := &a[i], &b[i]
		for k := range x.F32 {
			if math.Float32bits(x.F32[k]) != math.Float32bits(y.F32[k]) {
				return fmt.Errorf("operand %d, element %d: %v and %v", i, k, x.F32[k], y.F32[k])
			}
		}
		for k := range x.F64 {
			if math.Float64bits(x.F64[k]) != math.Float64bits(y.F64[k]) {
				return fmt.Errorf("operand %d, element %d: %v and %v", i, k, x.F64[k], y.F64[k])
			}
		}
		if !slices.Equal(x.BF16, y.BF16) || !slices.Equal(x.I32, y.I32) {
			return fmt.Errorf("operand %d differs", i)
		}
	}
	return nil
}

// near compares operands with the reference: within tol of the largest
// element (or of floor), or one rounding of bf16.
func near(got, want []Tensor, tol, floor float64) error {
	for i := range got {
		x, y := &got[i], &want[i]
		if y.DType == graph.U16 { // jumps where the upper halves do, see TestAdamWHalves
			continue
		}
		largest := floor
		for r := range y.Rows {
			for c := range y.Cols {
				largest = max(largest, math.Abs(y.At(r, c)))
			}
		}
		for r := range y.Rows {
			for c := range y.Cols {
				g, w := x.At(r, c), y.At(r, c)
				bound := tol * largest
				if y.DType == graph.BF16 {
					bound += math.Abs(w) / 128
				}
				if !(math.Abs(g-w) <= bound) && !(math.IsNaN(g) && math.IsNaN(w)) {
					return fmt.Errorf("operand %d (%d,%d): %v, reference %v, bound %.3g", i, r, c, g, w, bound)
				}
			}
		}
	}
	return nil
}

// TestFast compares every fast kernel, on every instruction set, with its reference. Operands
// that are written are filled with NaNs beforehand, and so are the gaps between rows, which
// must stay as they are.
func TestFast(t *testing.T) {
	for _, v := range simd.Sets() {
		t.Run(v.Name, func(t *testing.T) {
			e := NewEnvOn(pool.New(2), v)
			defer e.Close()
			each(t, testkit.Count(6, 25, 40), func(t *testing.T, s sample) {
				want, got := s.clone(), s.clone()
				Lookup(s.op).Reference(nil, &s.attr, want)
				Lookup(s.op).Fast(e, &s.attr, got)
				if s.attr.NF4 { // whose bytes are not numbers
					if err := sameBits(got[2:3], s.t[2:3]); err != nil {
						t.Error(err)
					}
					got[2], want[2] = Tensor{}, Tensor{}
				}
				if s.attr.CacheBits > 0 { // likewise
					if err := sameBits(got[1:2], want[1:2]); err != nil {
						t.Error(err)
					}
					got[1], want[1] = Tensor{}, Tensor{}
				}
				for i, spec := range s.op.Info().Args {
					if spec.Room {
						got[i], want[i] = Tensor{}, Tensor{}
					}
				}
				if err := near(got, want, s.tol, s.floor); err != nil {
					t.Error(err)
				}
				for i := range got { // so that only the gaps are compared
					blank(&got[i])
					blank(&want[i])
				}
				if err := sameBits(got, want); err != nil {
					t.Errorf("outside the operand: %v", err)
				}
			})
		})
	}
}

// TestWorkers: no bit depends on the number of workers, the vector instruction set,
// or whether stores bypass the caches.
func TestWorkers(t *testing.T) {
	one := NewEnv(1)
	defer one.Close()
	others := []*Env{NewEnv(5)}
	for _, v := range simd.Sets()[1:] {
		if v.Name != "portable" {
			others = append(others, NewEnvOn(pool.New(2), v))
		}
	}
	past := NewEnv(2)
	past.pastBytes = 0
	others = append(others, past)
	each(t, testkit.Count(4, 15, 30), func(t *testing.T, s sample) {
		a := s.clone()
		Lookup(s.op).Fast(one, &s.attr, a)
		for i, e := range others {
			b := s.clone()
			Lookup(s.op).Fast(e, &s.attr, b)
			if err := sameBits(a, b); err != nil {
				t.Errorf("%d workers, %s (%d): %v", e.Pool.Workers(), e.V.Name, i, err)
			}
		}
	})
	for _, e := range others {
		e.Close()
	}
}

// tokens cuts rows [lo, hi) out of the operands that have a row per token.
func (s sample) tokens(t []Tensor, lo, hi int) []Tensor {
	t = slices.Clone(t)
	for i := range t {
		if s.token[i] && !t[i].Absent() {
			t[i] = part(t[i], lo, hi, 0, t[i].Cols)
		}
	}
	return t
}

// part returns rows [r0, r1) and columns [c0, c1) of a matrix.
func part(t Tensor, r0, r1, c0, c1 int) Tensor {
	o := r0*t.Stride + c0
	t.Rows, t.Cols = r1-r0, c1-c0
	switch t.DType {
	case graph.F32:
		t.F32 = t.F32[o:]
	case graph.BF16, graph.U16:
		t.BF16 = t.BF16[o:]
	case graph.I32:
		t.I32 = t.I32[o:]
	case graph.I8:
		t.I8 = t.I8[o:]
	}
	return t
}

// rows returns the number of tokens and the unit at which they may be cut.
func (s sample) rows() (n, unit int) {
	for i := range s.t {
		if s.token != nil && s.token[i] {
			n = max(n, s.t[i].Rows)
		}
	}
	unit = 1
	if s.op.Info().Kind == graph.Sequence {
		unit = s.attr.Seq
	}
	if s.op == graph.LinearDW && s.t[1].DType == graph.BF16 {
		unit = 2 // products are added in pairs
	}
	if s.op == graph.ExpertDW && s.t[1].DType == graph.BF16 {
		unit = s.attr.Seq // those of a sequence
	}
	return n, unit
}

// TestSplit: a call on all tokens gives the bits of two calls on parts of them, for
// RowWise operators, and for sums over tokens if the second call continues the
// first.
func TestSplit(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	each(t, testkit.Count(6, 30, 60), func(t *testing.T, s sample) {
		n, unit := s.rows()
		if n/unit < 2 {
			return
		}
		cut := unit * (1 + rand.New(rand.NewPCG(uint64(n), 1)).IntN(n/unit-1))
		whole, parts := s.clone(), s.clone()
		f := Lookup(s.op).Fast
		f(e, &s.attr, whole)
		f(e, &s.attr, s.tokens(parts, 0, cut))
		next := s.attr
		if s.op.Info().Kind == graph.TokenSum {
			next.Acc = true
		}
		next.Row0 += cut
		f(e, &next, s.tokens(parts, cut, n))
		if err := sameBits(whole, parts); err != nil {
			t.Error(err)
		}
	})
}

// TestSteady: a repeated call allocates nothing.
func TestSteady(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	each(t, 4, func(t *testing.T, s sample) {
		f, ops := Lookup(s.op).Fast, s.clone()
		allocated := 1.0
		for tries := 0; tries < 50 && allocated > 0; tries++ { // until both workers have had a part, and so their buffers
			allocated = testing.AllocsPerRun(20, func() { f(e, &s.attr, ops) })
		}
		if allocated != 0 {
			t.Errorf("%v allocations per call", allocated)
		}
	})
}

// TestWide tests rows longer than a task, and the pieces of a norm.
func TestWide(t *testing.T) {
	e := NewEnv(3)
	defer e.Close()
	m := &maker{Rand: rand.New(rand.NewPCG(21, 22))}
	for _, size := range testkit.Sample([][2]int{{1, 70001}, {2, 65536}, {3, 50257}}, 1, 3) {
		rows, cols := size[0], size[1]
		for _, d := range []graph.DType{graph.F32, graph.BF16} {
			scalars := NewTensor(graph.F32, 1, graph.NumScalars)
			copy(scalars.F32, []float32{0.01, 0.3, 0.1, 0.37})
			adam := graph.Attr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1}
			for _, s := range []sample{
				{op: graph.Act, t: []Tensor{m.mat(d, rows, cols, 1), m.mat(d, rows, cols, 3)}},
				{op: graph.Add, t: []Tensor{m.mat(d, rows, cols, 1), m.mat(d, rows, cols, 3)}},
				{op: graph.Cast, t: []Tensor{m.mat(d, rows, cols, 1), m.f32(rows, cols)}},
				{op: graph.AdamW, attr: adam, t: []Tensor{m.f32(rows, cols), m.f32(rows, cols), m.positive(rows, cols), m.mat(d, rows, cols, 1),
					m.positive(1, 2), scalars, m.mat(graph.BF16, rows, cols, 1), {}}},
				{op: graph.AdamW, attr: adam, t: []Tensor{m.mat(d, rows, cols, 1), m.mat(d, rows, cols, 1), m.above0(d, rows, cols), m.f32(rows, cols),
					{}, scalars, {}, {}}},
				{op: graph.CrossEntropy, attr: graph.Attr{Grad: true}, t: []Tensor{m.f32(rows, 1), m.mat(d, rows, cols, 4), m.ints(rows, -1, cols), scalars, {}}},
				{op: graph.NormPart, t: []Tensor{m.mat(graph.F64, 1, graph.NormPieces(int64(rows*cols)), 1), m.f32(rows, cols)}},
				{op: graph.EmbedBwd, t: []Tensor{m.f32(rows, cols), m.mat(d, 5, cols, 1), m.ints(5, 0, rows)}},
			} {
				want, got := s.clone(), s.clone()
				Lookup(s.op).Reference(nil, &s.attr, want)
				Lookup(s.op).Fast(e, &s.attr, got)
				if err := near(got, want, 1e-5, 0); err != nil {
					t.Errorf("%v: %v", s, err)
				}
			}
		}
	}
}

// TestSharedPool: Envs of concurrent streams share a pool without affecting each
// other's results.
func TestSharedPool(t *testing.T) {
	p := pool.New(3)
	defer p.Close()
	alone := NewEnv(1)
	defer alone.Close()
	var wg sync.WaitGroup
	var mu sync.Mutex // guards alone
	for stream := range uint64(3) {
		e := NewEnvOn(p, simd.Best())
		wg.Go(func() {
			for seed := range uint64(testkit.Count(5, 20, 50)) {
				for op, make := range cases {
					if op == graph.AttentionBwd { // its samples take long to make
						continue
					}
					s := make(&maker{Rand: rand.New(rand.NewPCG(seed, stream)), mixed: true})
					s.op = op
					a, b := s.clone(), s.clone()
					Lookup(op).Fast(e, &s.attr, a)
					mu.Lock()
					Lookup(op).Fast(alone, &s.attr, b)
					mu.Unlock()
					if err := sameBits(a, b); err != nil {
						t.Errorf("stream %d, seed %d, %v: %v", stream, seed, s, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// TestInPlace: results that may overwrite an operand are the same when they do.
func TestInPlace(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for _, op := range []graph.Op{graph.ActBwd, graph.RMSNormDX} {
		for seed := range uint64(testkit.Count(6, 30, 60)) {
			m := &maker{Rand: rand.New(rand.NewPCG(seed, uint64(op))), mixed: seed%2 == 1}
			s := cases[op](m)
			s.t[0] = m.mat(s.t[1].DType, s.t[1].Rows, s.t[1].Cols, 1)
			Lookup(op).Fast(e, &s.attr, s.t)
			over := slices.Clone(s.t)
			over[1] = copies(s.t[1:2])[0]
			over[0] = over[1]
			Lookup(op).Fast(e, &s.attr, over)
			if err := near(over[:1], s.t[:1], 0, 0); err != nil {
				t.Fatalf("%v, seed %d: %v", op, seed, err)
			}
		}
	}
}
