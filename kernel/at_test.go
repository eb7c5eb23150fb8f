package kernel

import (
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestPieces: AttentionAt on successive pieces of a sequence, starting with a cache
// full of NaNs, matches Attention on the whole sequence. How the rows are cut does
// not change a bit.
func TestPieces(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for seed := range uint64(testkit.Count(6, 30, 60)) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 77)), mixed: seed%3 == 2}
		a, _ := m.heads()
		n, d := a.Seq, m.float()
		width := (a.Heads + 2*a.KVHeads) * a.HeadDim
		qkv := m.mat(d, n, width, 1)
		sinks := m.sinks(a)
		want, lse := m.f32(n, a.Heads*a.HeadDim), m.f32(n, a.Heads)
		Lookup(graph.Attention).Fast(e, &a, []Tensor{want, lse, part(qkv, 0, n, 0, want.Cols), part(qkv, 0, n, want.Cols, width), {}, sinks})
		at := a
		at.Seq = 0
		pieces := func(most int) Tensor {
			o := NewTensor(graph.F32, n, a.Heads*a.HeadDim)
			kv := NewTensor(d, 2*a.KVHeads*(n+2), a.HeadDim)
			for r := range kv.Rows {
				for c := range kv.Cols {
					kv.Set(r, c, poison)
				}
			}
			s := sample{op: graph.AttentionAt, token: []bool{true, false, true, false, false}}
			for pos := 0; pos < n; {
				k := min(n-pos, 1+m.IntN(most))
				call := s.tokens([]Tensor{o, kv, qkv, m.ints(1, pos, pos+1), sinks}, pos, pos+k)
				Lookup(graph.AttentionAt).Fast(e, &at, call)
				pos += k
			}
			return o
		}
		one, many := pieces(1), pieces(9)
		tol := 1e-5
		if d == graph.BF16 {
			tol = 1.0 / 128
		}
		if err := near([]Tensor{one}, []Tensor{want}, tol, 0); err != nil {
			t.Fatalf("seed %d, %+v: against the whole sequence: %v", seed, a, err)
		}
		if err := sameBits([]Tensor{one}, []Tensor{many}); err != nil {
			t.Fatalf("seed %d, %+v: another cut: %v", seed, a, err)
		}
	}
}

// TestPositions: EmbedAt and RoPEAt at a position match the rows of Embed and RoPE
// there, bit for bit.
func TestPositions(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for seed := range uint64(testkit.Count(6, 30, 60)) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 78)), mixed: seed%2 == 1}
		for _, f := range []struct {
			op, at graph.Op
		}{
			{graph.Embed, graph.EmbedAt},
			{graph.RoPE, graph.RoPEAt},
		} {
			s := cases[f.op](m)
			s.op, s.attr.Row0 = f.op, 0
			n := min(s.attr.Seq, s.t[0].Rows)
			if n == 0 {
				continue
			}
			first := m.IntN(n)
			whole, part := s.clone(), s.clone()
			Lookup(f.op).Fast(e, &s.attr, s.tokens(whole, 0, n))
			at := s.attr
			at.Seq = 0
			Lookup(f.at).Fast(e, &at, append(s.tokens(part, first, n), m.ints(1, first, first+1)))
			x, y := s.tokens(whole, first, n)[0], s.tokens(part, first, n)[0]
			for r := range x.Rows {
				for c := range x.Cols {
					if x.At(r, c) != y.At(r, c) {
						t.Fatalf("seed %d: %v: (%d,%d): %v and %v", seed, s, first+r, c, x.At(r, c), y.At(r, c))
					}
				}
			}
		}
	}
}

// TestLongPieces: pieces of more blocks of queries than a task takes, beginning within a block, have the bits of single rows.
func TestLongPieces(t *testing.T) {
	e := NewEnv(1) // so that tasks are large
	defer e.Close()
	for _, d := range []graph.DType{graph.F32, graph.BF16} {
		m := &maker{Rand: rand.New(rand.NewPCG(5, 77))}
		a := graph.Attr{Heads: 8, KVHeads: 4, HeadDim: 16, Scale: 0.25, Window: 500}
		const first, n = 7, mostBlocks*64 + 90
		qkv := m.mat(d, first+n, (a.Heads+2*a.KVHeads)*a.HeadDim, 1)
		pieces := func(cuts ...int) Tensor {
			o := NewTensor(graph.F32, first+n, a.Heads*a.HeadDim)
			kv := NewTensor(d, 2*a.KVHeads*(first+n), a.HeadDim)
			s := sample{op: graph.AttentionAt, token: []bool{true, false, true, false, false}}
			for i, pos := range cuts[:len(cuts)-1] {
				call := s.tokens([]Tensor{o, kv, qkv, m.ints(1, pos, pos+1), {}}, pos, cuts[i+1])
				Lookup(graph.AttentionAt).Fast(e, &a, call)
			}
			return o
		}
		single := make([]int, first+n+1)
		for i := range single {
			single[i] = i
		}
		if err := sameBits([]Tensor{pieces(0, first, first+n)}, []Tensor{pieces(single...)}); err != nil {
			t.Errorf("%v: %v", d, err)
		}
	}
}
