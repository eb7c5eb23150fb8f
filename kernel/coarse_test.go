package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestHugeScores: as long as scores are finite, so are results, forward and backward, of the reference and at a
// position in a cache. A query's weights are in [0, 1], and their sum is 1 (values of 1 give 1), in the
// backward pass as long as fp32 can tell.
func TestHugeScores(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for seed := range uint64(testkit.Count(6, 40, 100)) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 79)), mixed: seed%3 == 2}
		x := m.whole(graph.F32)
		exponent := m.IntN(61) - 4 // of queries and keys: products up to 2^112 in fp32
		size := math.Ldexp(1, exponent)
		for r := range x.n {
			for c := range x.qkv.Cols {
				v := x.qkv.At(r, c) * size
				if c >= x.width+x.KVHeads*x.HeadDim {
					v = 1
				} else if m.IntN(8) == 0 && r > 0 {
					v = x.qkv.At(r-1, c) // scores that are equal, or nearly
				}
				x.qkv.Set(r, c, v)
			}
		}
		for r := range x.n {
			for c := range x.width {
				x.do.Set(r, c, 1)
			}
		}
		x.run(e, 0, x.n, false)
		x.run(e, 0, x.n, true)
		ones(t, seed, "weights add up to", x.o)
		finite(t, seed, "forward and backward", x.lse, x.dqkv, x.dkv)
		x.checkWeights(t, seed)

		ref := []Tensor{NewTensor(graph.F32, x.n, x.width), NewTensor(graph.F32, x.n, x.Heads)}
		q, kv := part(x.qkv, 0, x.n, 0, x.width), part(x.qkv, 0, x.n, x.width, x.qkv.Cols)
		Lookup(graph.Attention).Reference(e, &x.Attr, []Tensor{ref[0], ref[1], q, kv, x.starts})
		ones(t, seed, "the reference's weights add up to", ref[0])
		for _, lse := range []Tensor{ref[1], x.lse} {
			Lookup(graph.AttentionBwd).Reference(e, &x.Attr, []Tensor{part(x.dqkv, 0, x.n, 0, x.width), x.dkv, x.deltas, x.do, q, kv, x.o, lse, x.starts})
			finite(t, seed, "the reference's gradients", x.dqkv, x.dkv)
		}

		at, o := x.Attr, NewTensor(graph.F32, x.n, x.width)
		at.Seq = 0
		cache := NewTensor(x.qkv.DType, 2*x.KVHeads*x.n, x.HeadDim)
		for _, f := range []Func{Lookup(graph.AttentionAt).Fast, Lookup(graph.AttentionAt).Reference} {
			f(e, &at, []Tensor{o, cache, x.qkv, m.ints(1, 0, 1)})
			ones(t, seed, "at a position weights add up to", o)
		}
		if t.Failed() {
			t.Fatalf("seed %d: %+v, queries and keys of 2^%d", seed, x.Attr, exponent)
		}
	}
}

// TestHugeSinks: as long as scores and sinks are finite, so are results, and weights, with the sink's, add up
// to 1. A sink of -Inf changes no bit.
func TestHugeSinks(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for seed := range uint64(testkit.Count(6, 40, 100)) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 80)), mixed: seed%3 == 2}
		x := m.whole(graph.F32)
		x.starts = Tensor{} // a cache has none
		for r := range x.n {
			for c := x.width + x.KVHeads*x.HeadDim; c < x.qkv.Cols; c++ {
				x.qkv.Set(r, c, 1) // values
			}
		}
		run := func(sinks Tensor) []Tensor {
			x.sinks = sinks
			x.run(e, 0, x.n, false)
			x.run(e, 0, x.n, true)
			at, o := x.Attr, NewTensor(graph.F32, x.n, x.width)
			at.Seq = 0
			cache := NewTensor(x.qkv.DType, 2*x.KVHeads*x.n, x.HeadDim)
			Lookup(graph.AttentionAt).Fast(e, &at, []Tensor{o, cache, x.qkv, m.ints(1, 0, 1), sinks})
			return append(x.results(), copies([]Tensor{o})...)
		}
		without, sinks := run(Tensor{}), NewTensor(graph.F32, 1, x.Heads)
		for h := range x.Heads {
			sinks.Set(0, h, math.Inf(-1))
		}
		if err := sameBits(run(sinks), without); err != nil {
			t.Fatalf("seed %d: %+v, sinks of -Inf: %v", seed, x.Attr, err)
		}
		exponent := m.IntN(101) - 4
		for h := range x.Heads {
			sinks.Set(0, h, math.Ldexp(m.NormFloat64(), exponent))
		}
		all := run(sinks)
		finite(t, seed, "with sinks", all...)
		dsinks := NewTensor(graph.F32, 1, x.Heads)
		Lookup(graph.SinkGrad).Fast(e, &graph.Attr{}, []Tensor{dsinks, x.deltas, x.lse, sinks})
		finite(t, seed, "the gradient of sinks", dsinks)
		for r := range x.n {
			for c := range x.width {
				h := c / x.HeadDim
				sunk := math.Exp(sinks.At(0, h) - x.lse.At(r, h))
				if got := all[0].At(r, c) + sunk; !(math.Abs(got-1) <= 1.0/64) {
					t.Fatalf("seed %d: weights of row %d, head %d add up to %v, of which the sink %v has %v", seed, r, h, got, sinks.At(0, h), sunk)
				}
			}
		}
		if err := near(all[5:], all[:1], 1.0/64, 1); err != nil {
			t.Fatalf("seed %d: %+v, sinks of 2^%d, at a position: %v", seed, x.Attr, exponent, err)
		}
	}
}

// checkWeights checks the weights of the backward pass, where do and values are 1, so dv is a key's sum of
// weights. A query's weights add up to 1 where lse, which includes the logarithm of their sum, is fine enough,
// and to at least 1 where lse is so coarse that it is the greatest score.
func (x *whole) checkWeights(t *testing.T, seed uint64) {
	t.Helper()
	var sum, least float64
	for r := range x.n {
		for g := range x.KVHeads {
			dv := x.dkv.At(r, (x.KVHeads+g)*x.HeadDim)
			if sum += dv; !(dv >= 0) || dv > float64((x.n-r)*x.Heads/x.KVHeads)*1.01 {
				t.Errorf("seed %d: key %d has a weight of %v in all", seed, r, dv)
			}
		}
	}
	fine := true
	for r := range x.n {
		for h := range x.Heads {
			lse := math.Abs(x.lse.At(r, h))
			if fine = fine && lse < 1<<14; lse < 1<<14 || lse >= 1<<28 {
				least += 0.99
			}
		}
	}
	if sum < least || fine && sum > 1.01*float64(x.n*x.Heads) {
		t.Errorf("seed %d: the weights of %v queries add up to %v, expected are %v at least", seed, x.n*x.Heads, sum, least)
	}
}

func ones(t *testing.T, seed uint64, what string, x Tensor) {
	t.Helper()
	for r := range x.Rows {
		for c := range x.Cols {
			if v := x.At(r, c); !(math.Abs(v-1) <= 1.0/128) {
				t.Fatalf("seed %d: %s %v in row %d, column %d", seed, what, v, r, c)
			}
		}
	}
}

func finite(t *testing.T, seed uint64, what string, all ...Tensor) {
	t.Helper()
	for i, x := range all {
		for r := range x.Rows {
			for c := range x.Cols {
				if v := x.At(r, c); math.IsNaN(v) || math.IsInf(v, 0) {
					t.Fatalf("seed %d: %s: %v in result %d, row %d, column %d", seed, what, v, i, r, c)
				}
			}
		}
	}
}
