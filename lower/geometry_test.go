package lower

import (
	"context"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/verify"
)

// TestSmallChunks: chunks that are too small to be divided among all ranks are
// whole on one of them, and the others have nothing, wherever the chunks live.
func TestSmallChunks(t *testing.T) {
	g := samples.BuildGPT(t, 2, 32, 2, 64, 16, false)
	for _, shard := range plan.Shardings() {
		for _, tier := range []device.Tier{device.DeviceTier, device.HostTier} {
			if tier == device.HostTier && (shard == "state" || shard == "grads") {
				continue // refused
			}
			pl := plan.Plain(g, 2)
			pl.Ranks, pl.Chunks = 4, plan.Layout(g, 1)
			for i := range pl.Chunks {
				c := &pl.Chunks[i]
				c.Shard, c.Weights, c.Grads, c.State = shard, tier, tier, tier
			}
			pl.Cache = pl.CacheNeeded(g)
			var list []*program.Program
			for rank := range pl.Ranks {
				p, err := Lower(context.Background(), g, pl, Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1, Rank: rank, Capacity: program.NoLimits})
				if err != nil {
					t.Fatalf("shard %q on the %v: %v", shard, tier, err)
				}
				list = append(list, p)
			}
			if err := verify.Verify(list...); err != nil {
				t.Errorf("shard %q on the %v: %v", shard, tier, err)
			}
		}
	}
}

// TestNearestBoundary against a list of all places where a shard may end.
func TestNearestBoundary(t *testing.T) {
	g := samples.BuildGPT(t, 1, 96, 2, 700, 16, false)
	within := plan.Runs(g)
	for _, elems := range []int64{1, 20000, 1 << 62} {
		geo := newGeometry(g, &plan.Plan{Chunks: plan.Layout(g, elems)})
		for c, ch := range geo.pl.Chunks {
			end := geo.chunkRange(c).hi
			marks, at := []int{end}, 0
			for i := ch.First; i < ch.Last; {
				run := 0
				for first := i; i == first || i < ch.Last && within[i]; i++ {
					run += int(g.Params[i].Elems())
				}
				for e := 0; e < run; e += graph.NormPiece {
					marks = append(marks, at+e)
				}
				at += run
			}
			for e := 0; e < end; e += 1 + end/977 {
				want := marks[0]
				for _, m := range marks {
					if d, best := max(m-e, e-m), max(want-e, e-want); d < best || d == best && m > want {
						want = m
					}
				}
				if got := geo.nearestBoundary(c, e); got != want {
					t.Fatalf("chunk %d of %d elements: the mark nearest to %d is %d, not %d", c, end, e, want, got)
				}
			}
		}
	}
}

// TestRuns: a layer's vectors are one run, as are two matrices whose gradients one operator computes. Runs are in one
// chunk under every layout, and plans that divide one are refused.
func TestRuns(t *testing.T) {
	g := samples.BuildGPT(t, 2, 96, 2, 700, 16, false)
	within := plan.Runs(g)
	for i, p := range g.Params {
		vectors := i > 0 && p.Vector && g.Params[i-1].Vector && g.Params[i-1].Layer == p.Layer
		if want := vectors || strings.HasSuffix(p.Name, ".c_proj.weight"); within[i] != want {
			t.Errorf("%s is in a run with its predecessor: %v, want %v", p.Name, within[i], want)
		}
	}
	for elems := int64(1); elems < 1<<20; elems *= 2 {
		pl := plan.Plain(g, 1)
		pl.Chunks = plan.Layout(g, elems)
		if err := pl.Validate(g); err != nil {
			t.Errorf("chunks of %d elements: %v", elems, err)
		}
	}
	for i := range g.Params {
		pl := plan.Plain(g, 1)
		if pl.Chunks = divideAt(plan.Layout(g, 1), i); (pl.Validate(g) != nil) != within[i] {
			t.Errorf("a chunk that begins with %s: %v, in a run: %v", g.Params[i].Name, pl.Validate(g), within[i])
		}
	}
}

// divideAt splits the chunk that holds parameter i before i.
func divideAt(chunks []plan.Chunk, i int) (list []plan.Chunk) {
	for _, c := range chunks {
		if c.First < i && i < c.Last {
			list = append(list, plan.Chunk{First: c.First, Last: i})
			c.First = i
		}
		list = append(list, c)
	}
	return list
}
