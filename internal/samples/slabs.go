package samples

import (
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
)

// RandomSlabs is a tiny model with a random plan whose ranks share matrices, and some sequences too. Validate refuses some of these plans.
func RandomSlabs(t testing.TB, rng *rand.Rand) (*graph.Graph, *plan.Plan) {
	t.Helper()
	n := 2 + 2*rng.IntN(2)
	for {
		p, micros, layers := randomPipeline(rng)
		if rng.IntN(2) == 0 || p.Ranks*n > 8 {
			p, micros, layers = nil, 1, 1+rng.IntN(2)
		}
		m := *RandomModel(rng, layers)
		if rng.IntN(3) == 0 {
			m = *randomMixture(rng, layers)
			m.FeedForward, m.Shared, m.DenseWidth = m.FeedForward*n, m.Shared*n, m.DenseWidth*n
		}
		m.Indivisible = false
		if m.KVHeads%n != 0 && rng.IntN(2) == 0 {
			m.Heads, m.KVHeads, m.Width = m.Heads*n, m.KVHeads*n, m.Width*n
		} else if m.Heads%n != 0 { // fewer key/value heads than ranks
			m.Heads, m.Width = m.Heads*n, m.Width*n
		}
		if graph.CheckSlabs(&m, n) != nil {
			continue
		}
		docs := []*graph.Documents{nil, {Length: 3}}[rng.IntN(2)]
		if docs != nil && m.Rotary() && m.Balance == 0 && (p == nil || p.Slices < 2) && rng.IntN(2) == 0 {
			docs.Preference = 0.1
		}
		seq, parts := 8, 1
		if (p == nil || p.Ranks == 2 && p.Slices == 1) && n == 2 && rng.IntN(2) == 0 {
			seq, parts = []int{8, 32, 128}[rng.IntN(3)], 2
			if p != nil || rng.IntN(2) == 0 { // heads that ranks can exchange
				m.Heads, m.KVHeads, m.Width = m.Heads*parts, m.KVHeads*parts, m.Width*parts
			}
			if m.MaxPositions = max(m.MaxPositions, seq); graph.CheckParts(&m, seq, parts, docs) != nil {
				continue
			}
		}
		g, err := graph.BuildDivided(&m, seq, parts, n, []graph.DType{graph.F32, graph.BF16}[rng.IntN(2)], docs)
		if err != nil {
			t.Fatal(err)
		}
		pl := RandomPlan(g, 2, rng)
		pl.Ranks = n * parts * (1 + rng.IntN(2))
		if k := 1 + rng.IntN(2); parts > 1 && g.DividesHeads(k) {
			pl.KVParts, pl.KVEager = k, rng.IntN(2) == 0
		}
		drawExchange(pl, g, rng)
		if p != nil {
			pl.Pipeline, pl.Ranks, pl.Group, pl.MicroBatch, pl.MicroBatches = p, pl.Ranks*p.Ranks, 1, 1+rng.IntN(2)/p.Slices, micros
			pl.HeadRows = []int{2, 4, g.Seq, pl.MicroBatch * g.Seq}[rng.IntN(4)]
		}
		DrawOptimizer(pl, g, rng)
		for i := range pl.Chunks {
			pl.Chunks[i].Shard = plan.Shardings()[rng.IntN(4)]
		}
		amendPlan(pl, g, rng)
		pl.Cache = pl.CacheNeeded(g) + int64(rng.IntN(3)*3000)
		return g, pl
	}
}

// drawExchange has ranks that share sequences exchange heads, in half of the plans in which they can, and in a pipeline in all.
func drawExchange(pl *plan.Plan, g *graph.Graph, rng *rand.Rand) {
	if g.Parts() > 1 && graph.ExchangesHeads(g, pl.KVParts) && (pl.Pipeline != nil || rng.IntN(2) == 0) {
		pl.Exchange = plan.ExchangeHeads
	}
}
