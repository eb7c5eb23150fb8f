package session

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/schedule"
)

// TestSharedPairs: ranks that share sequences of pairs have the log-probabilities of one rank, bit for bit, and ten steps are PyTorch's. It is
// law L3, too: of a sequence of T tokens each of n ranks gets four numbers a token that others have.
func TestSharedPairs(t *testing.T) {
	for _, c := range testkit.Sample([]struct {
		name              string
		each, parts, ways int // pairs in a sequence, ranks to a sequence, to a matrix
		exchange          string
	}{{"llama-tied", 1, 2, 1, ""}, {"qwen3-tiny", 8, 4, 1, plan.ExchangeHeads}, {"gemma3-tiny", 4, 2, 2, plan.ExchangeHeads}, {"gemma2-tiny", 4, 2, 1, ""}, {"neox-tiny", 8, 4, 1, ""},
		{"llama-tied", 4, 2, 2, ""}, {"neox-tiny", 1, 2, 2, plan.ExchangeHeads}, {"gemma3-tiny", 8, 4, 1, plan.ExchangeHeads}, {"gemma2-tiny", 1, 2, 2, plan.ExchangeHeads}, {"qwen3-tiny", 1, 2, 1, ""}}, 2, 4) {
		t.Run(fmt.Sprintf("%s/%dx%d/%s", c.name, c.parts, c.ways, c.exchange), func(t *testing.T) {
			f := loadPairs(t, c.name, c.each)
			part := *f
			part.fixture = f.divided(t, c.parts, c.ways)
			pl := plan.Plain(part.graph, 4)
			pl.Exchange = c.exchange
			want := slices.Clone(f.against(t, nil, f.open(t, plan.Plain(f.graph, 4), lower.Eval), 1).Ratios)
			own := slices.Clone(part.against(t, nil, part.openRanks(t, pl, lower.Eval), 1).Ratios)
			for i := range want {
				if e := math.Abs(float64(own[i] - want[i])); e > 0 && (c.ways == 1 || e > 1e-5*math.Abs(float64(want[i]))) {
					t.Errorf("log-probability %v of token %d, on one rank %v", own[i], i, want[i])
				}
			}
			s := part.openRanks(t, pl, lower.Train)
			for n := 1; n <= 10; n++ {
				out := part.against(t, own, s, n)
				if math.Abs(out.Loss-f.losses[n-1]) > 2e-5*f.losses[n-1]+2e-6 || math.Abs(out.Norm/f.norms[n-1]-1) > 1e-3 {
					t.Errorf("step %d: loss %.8f norm %.8f, PyTorch %.8f %.8f", n, out.Loss, out.Norm, f.losses[n-1], f.norms[n-1])
				}
			}
			if c.exchange != "" {
				return
			}
			_, tr := part.train(t, pl, 1)
			bytes := 4 * 4 * int64(len(f.tokens)/c.parts*(c.parts-1))
			for r, n := range tr.network {
				if n[graph.AllToAll] != bytes {
					t.Errorf("rank %d receives %d bytes, want %d", r, n[graph.AllToAll], bytes)
				}
			}
		})
	}
}

// TestSharedPairsInPlans: whatever else a plan divides, and in pipelines in both directions, ranks that share sequences of pairs train as
// one rank does, up to the order of sums, and L2 holds on each.
func TestSharedPairsInPlans(t *testing.T) {
	r := testkit.Rand(t)
	for k := range testkit.Count(1, 2, 20) {
		f := loadPairs(t, pairModels[r.IntN(len(pairModels))], 1)
		f.pairs, f.paired = f.moved, f.count()
		if k%2 == 1 {
			f.adaptSome(t, r)
		}
		_, want := f.train(t, plan.Plain(f.graph, 4), 2)
		part := f.shared(t, 2)
		plans := []*plan.Plan{part.inGroups(r, 2)}
		plans[0].MicroBatches *= 2 // of four sequences
		if graph.ExchangesHeads(part.graph, 1) && !f.graph.Model.Tied {
			pl := plan.Plain(part.graph, 1)
			name := []string{"1f1b", "chimera"}[r.IntN(2)]
			s, err := schedule.Generate(name, schedule.Request{Ranks: 2, Micros: 4, Costs: schedule.DefaultCosts()})
			check(t, err)
			pl.Ranks, pl.MicroBatches, pl.Exchange, pl.Pipeline = 4, 4, plan.ExchangeHeads, &plan.Pipeline{Schedule: name, Ranks: 2, Stages: []int{0, 2}[:s.Stages()], Slices: 1}
			plans = append(plans, pl)
		}
		for _, pl := range plans {
			_, got := part.train(t, pl, 2)
			near(t, trace{losses: got.losses, norms: got.norms}, trace{losses: want.losses, norms: want.norms})
			part.proveAlike(t, pl)
		}
	}
}
