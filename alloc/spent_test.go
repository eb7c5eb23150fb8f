package alloc

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// TestSpent: a run that has spent its nodes, or more since whole turns are taken,
// searches no further; one without a limit does.
func TestSpent(t *testing.T) {
	went := 0
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 41))
		items, sections := randomItems(rng, 2+rng.IntN(60), 1+rng.Int64N(40))
		l := parts.Part{Items: items, Sections: sections}
		for _, allowed := range []int64{10, -1} {
			r := &run{ctx: t.Context(), opt: Options{Nodes: allowed}, nodes: 10 + int64(seed)%2*100}
			pf := r.portfolio(&leafState{Part: l}, slices.Max(parts.Loads(l.Items, l.Sections)))
			v := r.decide(&leafState{Part: l}, pf, 1000)
			switch {
			case allowed < 0 && pf.nodes > 0:
				went++
			case allowed > 0 && (v != unknown || pf.nodes != 0):
				t.Errorf("seed %d: %d nodes of %d were spent, and %d more were taken", seed, r.nodes-pf.nodes, allowed, pf.nodes)
			}
		}
	}
	if went == 0 {
		t.Error("no search without a limit took any nodes")
	}
}
