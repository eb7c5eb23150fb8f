package verify

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
)

// crossingMutations break what ranks exchange that give rows for heads.
var crossingMutations = []mutation{
	{"rows for other columns", func(m *mutator) string {
		i, in := m.talking(graph.AllToAll)
		if in == nil {
			return ""
		}
		r := &in.Args[m.IntN(2)]
		switch m.IntN(3) {
		case 0:
			in.Args[0], in.Args[1] = in.Args[1], in.Args[0]
		case 1:
			r.Off += (1 - 2*m.IntN(2)) * r.Cols
		default:
			r.Off += (1 - 2*m.IntN(2)) * r.Rows / 2 * r.Stride
		}
		return fmt.Sprintf("i%d exchanges something else", i)
	}},
}

// TestExchangeMutants breaks programs of ranks that exchange heads, and what is known of pairs.
func TestExchangeMutants(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 12))
	rejected, accepted := map[string]int{}, map[string]int{}
	for k := range testkit.Count(0, 4, 8) {
		m := *samples.TinyModels[[]string{"gpt2", "sinks"}[k%2]]
		m.Width, m.Heads, m.KVHeads, m.MaxPositions = 16, 4, 4, 32
		docs := []*graph.Documents{nil, {Length: 9}}
		if m.Rotary() { // others have as many key heads as heads, and no pairs
			m.KVHeads, docs = []int{1, 2, 4}[rng.IntN(3)], append(docs, &graph.Documents{Length: 9, Preference: 0.1})
		}
		g, err := graph.BuildPart(&m, 32, 2, graph.F32, docs[rng.IntN(len(docs))])
		if err != nil {
			t.Fatal(err)
		}
		pl := plan.Plain(g, 1)
		pl.Exchange = plan.ExchangeHeads
		if parts := 1 + rng.IntN(2); graph.ExchangesHeads(g, parts) {
			pl.KVParts = parts
		}
		kinds := slices.Concat(crossingMutations, crossingMutations, crossingMutations, crossingMutations)
		mutateRanks(t, g, pl, rng, rejected, accepted, kinds...)
	}
	for _, mu := range crossingMutations {
		if rejected[mu.name] == 0 {
			t.Errorf("no mutant was rejected by: %s", mu.name)
		}
	}
}
