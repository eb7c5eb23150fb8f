package search

import (
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
)

// BenchmarkSearch is planning by itself, on described machines: with many ranks, and with little memory. Next
// to its time it reports that of a step of the chosen plan, which must not get longer when the search gets
// faster.
func BenchmarkSearch(b *testing.B) {
	for _, c := range []struct {
		name                 string
		layers, width, heads int
		machine              string
		ranks, batch         int // sequences per rank
		precision            graph.DType
		memory               int64 // of the device; 0: all
	}{
		{"175B/64ranks", 96, 12288, 96, "a100-80", 64, 4, graph.BF16, 0},
		{"20B/8ranks", 44, 6144, 48, "a100-80", 8, 4, graph.BF16, 0},
		{"124M/500MiB", 12, 768, 12, "rtx4090", 1, 16, graph.F32, 500 << 20},
	} {
		b.Run(c.name, func(b *testing.B) {
			m, err := family.Known("gpt2")
			check(b, err)
			m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward = c.layers, c.width, c.heads, c.heads, c.width/c.heads, 4*c.width
			g, err := graph.Build(m, 1024, c.precision)
			check(b, err)
			h, err := hardware.KnownRank(c.machine, c.ranks)
			check(b, err)
			if c.memory > 0 {
				h.Memory.Device = c.memory
			}
			req := &Request{Graph: g, GlobalBatch: c.batch * c.ranks, Ranks: c.ranks,
				Options: lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1}}
			for b.Loop() {
				r, err := Search(b.Context(), req, &Machine{Capacity: h.Memory.Tiers(), Cost: h}, nil)
				check(b, err)
				b.ReportMetric(r.Best.Seconds(), "s/step")
				b.ReportMetric(float64(r.Evaluated), "plans")
			}
		})
	}
}
