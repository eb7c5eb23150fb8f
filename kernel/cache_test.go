package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// cache returns a cache of so many rows with random numbers, perhaps in few bits.
func (m *maker) cache(a *graph.Attr, d graph.DType, rows int) Tensor {
	a.CacheBits = []int{0, 0, 4, 8}[m.IntN(4)]
	t := m.mat(d, rows, graph.CacheCols(a.HeadDim, a.CacheBits, d), 1)
	if a.CacheBits == 0 {
		return t
	}
	for r := range rows {
		x := make([]float32, a.HeadDim)
		for i := range x {
			x[i] = float32(m.NormFloat64())
		}
		packCacheRow(t.cacheRow(r), x, a.CacheBits)
	}
	return t
}

// TestCacheRows: numbers that are written to a cache in few bits and read again are, by arithmetic in float64, within half a step of
// what they were, whatever the size of heads; a group takes as many bytes as FlexGen's, and half of that again in 8 bits.
func TestCacheRows(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, size := range []int{1, 2, 16, 63, 64, 65, 80, 128, 200} {
		for _, bits := range []int{4, 8} {
			for range 50 {
				x, shift, scale := make([]float32, size), r.NormFloat64(), math.Exp(6*r.NormFloat64())
				for i := range x {
					x[i] = float32(scale * (shift + r.NormFloat64()))
				}
				row, got := make([]byte, graph.CacheCols(size, bits, graph.F32)*4), make([]float32, size)
				packCacheRow(row, x, bits)
				unpackCacheRow(simd.Portable(), got, row, bits)
				for g := 0; g < size; g += 64 {
					checkGroup(t, x[g:min(g+64, size)], got[g:min(g+64, size)], bits)
				}
			}
		}
	}
	for bits, want := range map[int]int{4: 36, 8: 68} {
		if n := 2 * graph.CacheCols(64, bits, graph.BF16); n != want {
			t.Errorf("64 numbers in %d bits take %d bytes, want %d", bits, n, want)
		}
	}
}

// checkGroup checks what a group became.
func checkGroup(t *testing.T, x, got []float32, bits int) {
	t.Helper()
	const ulp = 1.0 / 128 // of bf16
	least, top := math.Inf(1), math.Inf(-1)
	for _, v := range x {
		least, top = min(least, float64(v)), max(top, float64(v))
	}
	least -= math.Abs(least) * ulp
	step := (top - least) / float64(int(1)<<bits-1) * (1 + ulp)
	for i, v := range x {
		if d := math.Abs(float64(got[i]) - float64(v)); d > step/2*(1+1e-5)+1e-6*math.Abs(float64(v)) {
			t.Fatalf("%d numbers in %d bits: %v became %v, %v away; half a step is %v", len(x), bits, v, got[i], d, step/2)
		}
	}
}

// TestCacheNaN: a number that is not finite makes its group NaN, and no other.
func TestCacheNaN(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat32} {
		for _, bits := range []int{4, 8} {
			x, got := make([]float32, 128), make([]float32, 128)
			x[70], x[71] = float32(bad), -float32(bad)
			row := make([]byte, graph.CacheCols(len(x), bits, graph.F32)*4)
			packCacheRow(row, x, bits)
			unpackCacheRow(simd.Portable(), got, row, bits)
			for i, v := range got {
				if bad := i >= 64; bad != math.IsNaN(float64(v)) {
					t.Fatalf("%v in %d bits: element %d is %v", x[70], bits, i, v)
				}
			}
		}
	}
}

// BenchmarkCache compares a step of attention over caches in few bits with one over numbers.
func BenchmarkCache(b *testing.B) {
	e := NewEnv(0)
	defer e.Close()
	m := &maker{Rand: rand.New(rand.NewPCG(1, 1))}
	for _, d := range []graph.DType{graph.F32, graph.BF16} {
		for _, bits := range []int{0, 8, 4} {
			const context = 2048
			a := graph.Attr{Heads: 9, KVHeads: 3, HeadDim: 64, Scale: 0.125, CacheBits: bits}
			t := make([]Tensor, 6)
			t[graph.AttentionAtO], t[graph.AttentionAtQKV] = NewTensor(d, 1, 9*64), m.mat(d, 1, 15*64, 1)
			t[graph.AttentionAtKV], t[graph.AttentionAtPos] = NewTensor(d, 2*3*context, graph.CacheCols(64, bits, d)), NewTensor(graph.I32, 1, 1)
			t[graph.AttentionAtPos].I32[0] = context - 1
			b.Run(fmt.Sprintf("%v/%d", d, bits), func(b *testing.B) {
				for b.Loop() {
					attentionAt(e, &a, t)
				}
			})
		}
	}
}
