package compare

import (
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lab/memo"
)

// published is the MFU of MEMO's paper at 1024K tokens.
const published = 0.523

// TestAblation: MEMO's configuration at both ends through the compiler, 7B on eight
// A800. Ours is no slower than any other way and, at 1024K, no slower than the paper; programs
// are within the device's and the host's memory; and what the compiler finds is what
// package memo finds by analysis, except for what only one of them sees: operators bound
// by memory and gathers on the one hand, copies that begin before a layer ends on the
// other. Both weigh most where sequences are short. Usually the model has four layers, which
// the analysis is too coarse for.
func TestAblation(t *testing.T) {
	m := memo.A800(0.6, 0)
	testkit.Needs(t, testkit.Usual)
	for _, tokens := range testkit.Sample([]int{64 << 10, 1 << 20}, 1, 1) {
		of, err := memo.Known("7B", tokens)
		check(t, err)
		whole := testkit.AtLevel() == testkit.All
		if !whole {
			of.Layers = 4
		}
		r, err := Ablate(t.Context(), m, of, tokens, func(string) {})
		check(t, err)
		g, err := graph.Build(of, tokens, graph.BF16)
		check(t, err)
		work, err := memo.Of(g)
		check(t, err)
		costs := m.Costs(work)
		ours := r.Arms[len(r.Arms)-1]
		if tokens == 1<<20 && ours.MFU < published {
			t.Errorf("%d tokens: MFU %.4f, the paper has %.4f", tokens, ours.MFU, published)
		}
		for i, a := range memo.Arms() {
			got := &r.Arms[i]
			t.Logf("%d tokens, %s: MFU %.4f %s, %.3f s recomputed, %d and %d bytes: %s", tokens, got.Name, got.MFU, got.Misfit, got.Again, got.Device, got.Host, got.Plan)
			if got.MFU > ours.MFU {
				t.Errorf("%d tokens: %s has an MFU of %.4f, ours %.4f", tokens, got.Name, got.MFU, ours.MFU)
			}
			if got.Device > got.Limits[0] || got.Host > got.Limits[1] {
				t.Errorf("%d tokens: %s takes %d and %d bytes of %v", tokens, got.Name, got.Device, got.Host, got.Limits)
			}
			analysed, err := a.Run(m, costs)
			check(t, err)
			if a.Name != got.Name {
				t.Errorf("arm %q is %q in package memo", got.Name, a.Name)
			}
			if whole && got.Misfit != analysed.Misfit {
				t.Errorf("%d tokens: %s: too small is %q, by analysis %q", tokens, got.Name, got.Misfit, analysed.Misfit)
			}
			if whole && got.Misfit == "" && !(got.MFU < analysed.MFU*1.02 && got.MFU > analysed.MFU*0.93) {
				t.Errorf("%d tokens: %s has an MFU of %.4f, by analysis %.4f", tokens, got.Name, got.MFU, analysed.MFU)
			}
		}
	}
}
