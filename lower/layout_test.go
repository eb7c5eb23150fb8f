package lower

import (
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
)

// TestLayoutAligns: wherever chunks are cut, a weight begins at a multiple of 64 bytes, even after one of an odd size
// such as the sinks of six heads. Otherwise a library's product could have different bits under different plans.
func TestLayoutAligns(t *testing.T) {
	m, err := family.Known("llama-3.2-1b")
	if err != nil {
		t.Fatal(err)
	}
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions, m.Sinks = 2, 48, 6, 2, 8, 100, 97, 16, true
	g, err := graph.Build(m, 16, graph.BF16)
	if err != nil {
		t.Fatal(err)
	}
	for _, elems := range []int64{1, 3000, 20000, 1 << 62} {
		geo := newGeometry(g, &plan.Plan{Chunks: plan.Layout(g, elems)})
		next := 0
		for _, c := range geo.pl.Chunks {
			if c.First != next || c.Last <= c.First {
				t.Fatalf("chunk %+v comes after parameter %d", c, next)
			}
			next = c.Last
		}
		if next != len(g.Params) {
			t.Errorf("%d of %d parameters are in chunks", next, len(g.Params))
		}
		for i, p := range g.Params {
			if at := geo.offsetOf[i] * 2; at%64 != 0 {
				t.Errorf("chunks of %d: %s begins at byte %d of its chunk", elems, p.Name, at)
			}
		}
	}
}
