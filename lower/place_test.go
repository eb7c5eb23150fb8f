package lower

import (
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/verify"
)

// TestThorough: addresses that were searched for are never higher than those of the
// heuristics, nor lower than the bound; some are lower than the heuristics'; and the
// program is as sound.
func TestThorough(t *testing.T) {
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	g := samples.BuildGraph(t, "gpt2", graph.F32)
	above, lower := 0, 0
	for range testkit.Count(60, 200, 200) {
		pl := samples.RandomPlan(g, 4, rng)
		quick, err := Lower(t.Context(), g, pl, Options{Capacity: program.NoLimits})
		if err != nil {
			continue // too few cache blocks
		}
		searched, err := Lower(t.Context(), g, pl, Options{Thorough: true, Capacity: program.NoLimits})
		if err != nil {
			t.Fatal(err)
		}
		if err := verify.Verify(searched); err != nil {
			t.Fatal(err)
		}
		for tier, h := range searched.Height {
			q := quick.Height[tier]
			if h > q || h < searched.Bound[tier] {
				t.Errorf("height %d, with heuristics %d, bound %d", h, q, searched.Bound[tier])
			}
			if q > quick.Bound[tier] {
				above++
			}
			if h < q {
				lower++
			}
		}
	}
	if lower == 0 {
		t.Errorf("%d of 600 heights are above the bound by heuristics, none is lower when searched", above)
	}
}
