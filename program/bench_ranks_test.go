package program

import (
	"context"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
)

func BenchmarkRanks(b *testing.B) {
	m, err := model.Known("gpt2")
	if err != nil {
		b.Fatal(err)
	}
	g, err := graph.Build(m, 1024, graph.BF16)
	if err != nil {
		b.Fatal(err)
	}
	pl := Plain(g, 32)
	pl.MicroBatch, pl.MicroBatches, pl.Group, pl.HeadRows, pl.Ranks = 1, 32, 1, 256, 8
	pl.Chunks = Layout(g, 1<<24)
	for i := range pl.Chunks {
		pl.Chunks[i].Weights, pl.Chunks[i].Grads, pl.Chunks[i].State = device.DeviceTier, device.HostTier, device.HostTier
		pl.Chunks[i].Shard = "weights"
	}
	pl.Cache = 2 * pl.CacheNeeded(g)
	opt := Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, RowUnit: 64}
	var ps []*Program
	n := 0
	for r := range pl.Ranks {
		opt.Rank = r
		p, err := Lower(context.Background(), g, pl, opt)
		if err != nil {
			b.Fatal(err)
		}
		if p.BatchRow == 0 {
			p.BatchRow = r * 32 * 1024
		}
		ps = append(ps, p)
		n += len(p.Instrs)
	}
	opt.Rank = 0
	if opt.Cuts, err = pl.Cuts(g); err != nil {
		b.Fatal(err)
	}
	plain, err := Lower(context.Background(), g, Plain(g, 256), opt)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("Verify", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := Verify(ps...); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(n), "instructions")
	})
	b.Run("Equivalent", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if eq, err := Equivalent(ps, []*Program{plain}); err != nil || eq != Reordered {
				b.Fatal(eq, err)
			}
		}
	})
}
