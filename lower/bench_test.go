package lower_test

import (
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// BenchmarkLower is the passes without the packing of addresses: the inner loop of searches. Its plans are drawn for a
// GPT of 24 layers: on one rank, and divided among eight.
func BenchmarkLower(b *testing.B) {
	g := samples.BuildGPT(b, 24, 64, 4, 1000, 64, false)
	for _, c := range []struct {
		name  string
		ranks int
	}{{"1rank", 1}, {"8ranks", 8}} {
		b.Run(c.name, func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			var plans []*plan.Plan
			for range 16 {
				pl := samples.RandomPlan(g, 8, rng)
				for i := range pl.Chunks {
					if c.ranks > 1 {
						pl.Chunks[i].Shard = "weights"
					}
				}
				pl.Ranks = c.ranks
				if lowerUnplaced(b, g, pl) == nil {
					plans = append(plans, pl)
				}
			}
			for b.Loop() {
				for _, pl := range plans {
					if err := lowerUnplaced(b, g, pl); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func lowerUnplaced(b *testing.B, g *graph.Graph, pl *plan.Plan) error {
	_, err := lower.Lower(b.Context(), g, pl, lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1, Unplaced: true, Capacity: program.NoLimits})
	return err
}
