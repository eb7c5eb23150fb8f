package program

import (
	"context"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// TestSmallChunks: chunks that are too small to be divided among all ranks are
// whole on one of them, and the others have nothing, wherever they live.
func TestSmallChunks(t *testing.T) {
	g := gpt(t, 2, 32, 2, 64, 16, false)
	for _, shard := range Shardings() {
		for _, tier := range []device.Tier{device.DeviceTier, device.HostTier} {
			if tier == device.HostTier && (shard == "state" || shard == "grads") {
				continue // refused
			}
			pl := Plain(g, 2)
			pl.Ranks, pl.Chunks = 4, Layout(g, 1)
			for i := range pl.Chunks {
				c := &pl.Chunks[i]
				c.Shard, c.Weights, c.Grads, c.State = shard, tier, tier, tier
			}
			pl.Cache = pl.CacheNeeded(g)
			var list []*Program
			for rank := range pl.Ranks {
				p, err := Lower(context.Background(), g, pl, Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1, Rank: rank, Capacity: NoLimits})
				if err != nil {
					t.Fatalf("shard %q on the %v: %v", shard, tier, err)
				}
				list = append(list, p)
			}
			if err := Verify(list...); err != nil {
				t.Errorf("shard %q on the %v: %v", shard, tier, err)
			}
		}
	}
}

// TestMark against a list of all places where a shard may end.
func TestMark(t *testing.T) {
	g := gpt(t, 1, 96, 2, 700, 16, false)
	for _, elems := range []int64{1, 20000, 1 << 62} {
		lo := &lowering{g: g, pl: &Plan{Chunks: Layout(g, elems)}}
		lo.index()
		for c, ch := range lo.pl.Chunks {
			end := lo.whole(c).hi
			marks := []int{end}
			for i := ch.First; i < ch.Last; i++ {
				for e := 0; e < int(g.Params[i].Elems()); e += graph.NormPiece {
					marks = append(marks, lo.offsetOf[i]+e)
				}
			}
			for e := 0; e < end; e += 1 + end/977 {
				want := marks[0]
				for _, m := range marks {
					if d, best := max(m-e, e-m), max(want-e, e-want); d < best || d == best && m > want {
						want = m
					}
				}
				if got := lo.mark(c, e); got != want {
					t.Fatalf("chunk %d of %d elements: the mark nearest to %d is %d, not %d", c, end, e, want, got)
				}
			}
		}
	}
}
