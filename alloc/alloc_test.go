package alloc_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/alloc/generate"
)

func TestHeuristicsAreValid(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		for _, p := range []alloc.Problem{
			generate.Random(rng, 60, 100, 40, 1000),
			generate.Nest(rng, 7),
			generate.Training{Layers: 6, Hidden: 1000, Weights: 5000, Transient: 4, Align: 64}.Problem(rng),
		} {
			s, err := alloc.Pack(context.Background(), p, alloc.Options{})
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if err := alloc.Validate(p, s); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if s.Height < s.LowerBound || s.LowerBound != alloc.LowerBound(p) {
				t.Fatalf("seed %d: height %d under bound %d", seed, s.Height, s.LowerBound)
			}
		}
	}
}

func TestNestsAreOptimal(t *testing.T) {
	for seed := range uint64(20) {
		p := generate.Nest(rand.New(rand.NewPCG(seed, 2)), 9)
		s, err := alloc.Pack(context.Background(), p, alloc.Options{})
		if err != nil || !s.Optimal {
			t.Errorf("seed %d: height %d bound %d err %v", seed, s.Height, s.LowerBound, err)
		}
	}
}

func BenchmarkHeuristics(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct {
		name string
		p    alloc.Problem
	}{
		{"gpt2", generate.Training{Layers: 12, Hidden: 12 << 20, Weights: 28 << 20, Transient: 20, Align: 64}.Problem(rng)},
		{"llama7b", generate.Training{Layers: 32, Hidden: 12 << 20, Weights: 800 << 20, Transient: 60, Align: 4096}.Problem(rng)},
		{"recompute", generate.Training{Layers: 32, Hidden: 12 << 20, Weights: 800 << 20, Transient: 60, Align: 4096, Recompute: true}.Problem(rng)},
		{"20k", generate.Training{Layers: 100, Hidden: 12 << 20, Weights: 800 << 20, Transient: 93, Align: 4096}.Problem(rng)},
		{"random20k", generate.Random(rng, 20000, 20000, 500, 1<<20)},
	} {
		b.Run(c.name, func(b *testing.B) {
			var s alloc.Solution
			for b.Loop() {
				s, _ = alloc.Pack(context.Background(), c.p, alloc.Options{})
			}
			b.ReportMetric(s.Gap()*100, "%gap")
			b.ReportMetric(float64(len(c.p.Buffers)), "buffers")
		})
	}
}
