package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// packed returns a weight in 4 bits, with gaps between rows.
func (m *maker) packed(d graph.DType, in, out int, wt bool) Tensor {
	plain := m.weight(graph.F32, in, out, wt)
	flat := make([]float32, 0, plain.Rows*plain.Cols)
	for r := range plain.Rows {
		flat = append(flat, plain.row(r, 0, plain.Cols)...)
	}
	t := m.mat(d, plain.Rows, graph.NF4Cols(plain.Cols, d), 1)
	bytes, row := PackNF4(flat, plain.Cols), graph.NF4Cols(plain.Cols, graph.F32)*4
	for r := range t.Rows {
		indices, scales := t.nf4(r, plain.Cols)
		from := bytes[r*row : (r+1)*row]
		copy(scales, from[copy(indices, from):])
	}
	return t
}

// TestNF4Panels: products of weights in 4 bits have the bits of products of the same weights
// unpacked beforehand, however many panels they take.
func TestNF4Panels(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for seed := range uint64(testkit.Count(10, 70, 200)) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 1))}
		e.panelElems = 1 + m.IntN(1<<14)
		n, in, out := 1+m.IntN(40), 1+m.IntN(400), 1+m.IntN(400)
		if seed%2 == 0 { // whole blocks of few rows, which are multiplied as they are where there are instructions for it
			n, in, out = 1+m.IntN(4), 64*(1+m.IntN(8)), 32*(1+m.IntN(8))+m.IntN(2)*16
			e.panelElems = 1 << 14
		}
		a := graph.Attr{NF4: true, WT: m.IntN(2) == 0, Acc: m.IntN(2) == 0}
		d := []graph.DType{graph.F32, graph.BF16}[m.IntN(2)]
		w, bias, res := m.packed(d, in, out, a.WT), m.any(1, out), m.any(n, out)
		if a.Acc {
			bias, res = Tensor{}, Tensor{}
		}
		wide := *plain(&a, &w, in, out)
		for _, c := range []struct {
			op graph.Op
			t  []Tensor
		}{
			{graph.Linear, []Tensor{m.any(n, out), m.mat(d, n, in, 1), w, bias, res}},
			{graph.LinearDX, []Tensor{m.any(n, in), m.mat(d, n, out, 1), w, {}}},
		} {
			got, want := copies(c.t), copies(c.t)
			want[2] = wide
			Lookup(c.op).Fast(e, &a, got)
			dense := a
			dense.NF4 = false
			Lookup(c.op).Fast(e, &dense, want)
			want[2] = got[2]
			if err := sameBits(got, want); err != nil {
				t.Fatalf("seed %d: %v of %d x %d x %d in %v, panels of %d: %v", seed, c.op, n, in, out, d, e.panelElems, err)
			}
		}
	}
}

// TestNF4ExpertPanels: the same for experts, whatever their sums start from.
func TestNF4ExpertPanels(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for seed := range uint64(testkit.Count(10, 120, 400)) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 2)), acc: seed%2 == 0, mixed: true}
		e.panelElems = 1 + m.IntN(1<<12)
		s := cases[graph.ExpertLinear](m)
		if !s.attr.NF4 {
			continue
		}
		in := inputs(&s.attr, &s.t[1], &s.t[3])
		wide := *plain(&s.attr, &s.t[2], in, s.t[0].Cols/s.t[3].Cols)
		got, want := copies(s.t), copies(s.t)
		want[2] = wide
		Lookup(graph.ExpertLinear).Fast(e, &s.attr, got)
		dense := s.attr
		dense.NF4 = false
		Lookup(graph.ExpertLinear).Fast(e, &dense, want)
		want[2] = got[2]
		if err := sameBits(got, want); err != nil {
			t.Fatalf("seed %d: %+v, panels of %d: %v", seed, s.attr, e.panelElems, err)
		}
	}
}

// TestNF4Pack: what is packed and unpacked again is the nearest of the 16 levels times the
// largest magnitude of its block, found by trying all.
func TestNF4Pack(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, cols := range []int{1, 2, 63, 64, 65, 128, 200} {
		const rows = 7
		src := make([]float32, rows*cols)
		for i := range src {
			src[i] = float32(r.NormFloat64() * math.Exp(3*r.NormFloat64()))
		}
		clear(src[:min(cols, 64)]) // a block of zeros
		got := make([]float32, len(src))
		UnpackNF4(got, PackNF4(src, cols), cols)
		for row := range rows {
			for c := 0; c < cols; c += 64 {
				block := src[row*cols+c : row*cols+min(c+64, cols)]
				scale := 0.0
				for _, v := range block {
					scale = max(scale, math.Abs(float64(v)))
				}
				for i, v := range block {
					best := math.Inf(1)
					for _, level := range graph.NF4Levels {
						best = min(best, math.Abs(float64(v)-float64(level)*scale))
					}
					if d := math.Abs(float64(v) - float64(got[row*cols+c+i])); d > best*(1+1e-6)+1e-6*scale {
						t.Fatalf("row of %d, element %d: %v became %v, %v away instead of %v", cols, c+i, v, got[row*cols+c+i], d, best)
					}
				}
			}
		}
	}
}

// TestNF4Tiny: a block whose greatest number is so small that levels times it are subnormal is 0, and its neighbour
// is not: some instructions take subnormal numbers for 0, and all are to compute the same.
func TestNF4Tiny(t *testing.T) {
	src, got := make([]float32, 128), make([]float32, 128)
	for i := range src {
		src[i] = leastScale
	}
	src[3], src[64] = -leastScale, 2*leastScale
	for i := range src[:64] {
		src[i] /= 2
	}
	UnpackNF4(got, PackNF4(src, 128), 128)
	for i, v := range got {
		if i < 64 && v != 0 || i >= 64 && v < 0x1p-125 {
			t.Fatalf("element %d, %v, became %v", i, src[i], v)
		}
	}
}

// TestNF4Nearest: the level found by its cell is that of a search through all bounds, at each
// bound, next to it, and elsewhere.
func TestNF4Nearest(t *testing.T) {
	check := func(v float32) {
		t.Helper()
		want := byte(0)
		for _, bound := range nf4Bounds {
			if v > bound {
				want++
			}
		}
		if got := nearest(v); got != want {
			t.Fatalf("%v: level %d, want %d", v, got, want)
		}
	}
	for _, v := range slices.Concat(nf4Bounds[:], graph.NF4Levels[:]) {
		for range 100 {
			v = max(math.Nextafter32(v, -2), -1)
		}
		for range 200 {
			check(v)
			v = min(math.Nextafter32(v, 2), 1)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 1_000_000 {
		check(2*r.Float32() - 1)
	}
}

// TestNF4NaN: what is not a finite number does not become one.
func TestNF4NaN(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		src := make([]float32, 64)
		for i := range src {
			src[i] = float32(i)
		}
		src[5] = bad
		got := make([]float32, 64)
		UnpackNF4(got, PackNF4(src, 64), 64)
		if v := float64(got[5]); !math.IsNaN(v) && !math.IsInf(v, 0) {
			t.Errorf("%v became %v", bad, v)
		}
	}
}

// BenchmarkNF4 compares products of weights in 4 bits and of the same weights unpacked.
func BenchmarkNF4(b *testing.B) {
	e := NewEnv(0)
	defer e.Close()
	m := &maker{Rand: rand.New(rand.NewPCG(1, 1))}
	for _, d := range []graph.DType{graph.F32, graph.BF16} {
		for _, rows := range []int{1, 64, 1024} {
			const in, out = 2048, 5632
			a := graph.Attr{NF4: true, WT: true}
			x, w := NewTensor(d, rows, in), m.packed(d, in, out, true)
			wide := plain(&a, &w, in, out)
			y := NewTensor(d, rows, out)
			for _, nf4 := range []bool{false, true} {
				a.NF4 = nf4
				t := []Tensor{y, x, *wide, {}, {}}
				if nf4 {
					t[2] = w
				}
				b.Run(fmt.Sprintf("%v/%d/nf4=%v", d, rows, nf4), func(b *testing.B) {
					for b.Loop() {
						linear(e, &a, t)
					}
				})
			}
		}
	}
}
