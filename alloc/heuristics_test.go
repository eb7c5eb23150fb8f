package alloc_test

import (
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/alloc/generate"
)

// BenchmarkHeuristics is the call that a plan search makes hundreds of times,
// and the large problems that only heuristics can take.
func BenchmarkHeuristics(b *testing.B) {
	for _, c := range []struct {
		name string
		make func(rng *rand.Rand) alloc.Problem
	}{
		{"gpt2", generate.Training{Layers: 12, Hidden: 12 << 20, Weights: 28 << 20, Transient: 20, Align: 64}.Problem},
		{"llama7b", generate.Training{Layers: 32, Hidden: 12 << 20, Weights: 800 << 20, Transient: 60, Align: 4096}.Problem},
		{"recompute", generate.Training{Layers: 32, Hidden: 12 << 20, Weights: 800 << 20, Transient: 60, Align: 4096, Recompute: true}.Problem},
		{"training20k", generate.Training{Layers: 100, Hidden: 12 << 20, Weights: 800 << 20, Transient: 93, Align: 4096}.Problem},
		{"training100k", generate.Training{Layers: 250, Hidden: 12 << 20, Weights: 800 << 20, Transient: 193, Align: 4096}.Problem},
		{"training1M", generate.Training{Layers: 1000, Hidden: 12 << 20, Weights: 800 << 20, Transient: 493, Align: 4096}.Problem},
		{"random20k", func(rng *rand.Rand) alloc.Problem { return generate.Random(rng, 20_000, 20_000, 500, 1<<20) }},
		{"random100k", func(rng *rand.Rand) alloc.Problem { return generate.Random(rng, 100_000, 100_000, 500, 1<<20) }},
		{"random1M", func(rng *rand.Rand) alloc.Problem { return generate.Random(rng, 1_000_000, 1_000_000, 500, 1<<20) }},
		{"guillotine100k", func(rng *rand.Rand) alloc.Problem {
			p := generate.Guillotine(rng, 100_000, 1<<20, 1<<20)
			p.Capacity = 0
			return p
		}},
		{"nest", func(rng *rand.Rand) alloc.Problem { return generate.Nest(rng, 100_000) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := c.make(rand.New(rand.NewPCG(1, 1)))
			var s alloc.Solution
			for b.Loop() {
				s, _ = alloc.Pack(background, p, alloc.Options{})
			}
			b.ReportMetric(s.Gap()*100, "%gap")
			b.ReportMetric(float64(len(p.Buffers)), "buffers")
		})
	}
}
