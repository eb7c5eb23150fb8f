package plan

import (
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
)

// TestSlicesTake: sequences in slices may not have attention repeated, which reads what earlier slices no longer have: not where adapters are
// behind the only attention.
func TestSlicesTake(t *testing.T) {
	for adapted, want := range map[bool][]string{false: {"none", "light"}, true: {"none"}} {
		m, err := family.Known("gpt2")
		if err != nil {
			t.Fatal(err)
		}
		m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions = 1, 8, 2, 2, 4, 16, 24, 32
		if adapted {
			if err := m.Adapt(model.LoRA{Rank: 1}, "*.mlp.*"); err != nil {
				t.Fatal(err)
			}
		}
		g, err := graph.Build(m, 24, graph.F32)
		if err != nil {
			t.Fatal(err)
		}
		if got := SlicesTake(g); !slices.Equal(got, want) {
			t.Errorf("adapters %v: %v, want %v", adapted, got, want)
		}
	}
}
