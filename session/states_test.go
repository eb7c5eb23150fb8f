package session

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/sim"
)

// TestStatesBeyondDevice: a model whose weights, gradients and moments are
// twenty times what the device holds, and more than the host may hold, trains
// on one rank and on two with the plan that the search finds: the moments are on
// disk, the losses are those of a machine that has room for all, and the bytes
// over each link are a closed form.
func TestStatesBeyondDevice(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
	const sequences = 16
	f.deepen(t, 32, sequences)
	var params int64
	for _, p := range f.graph.Params {
		params += p.Elems()
	}
	h, err := hardware.KnownRank("rtx4090", 1)
	check(t, err)
	_, plain := f.train(t, plan.Plain(f.graph, sequences), 1)
	for _, ranks := range testkit.Sample([]int{2, 1}, 1, 1) {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
			m := &search.Machine{Cost: sim.CostFunc(h.Cost), Capacity: [device.NumTiers]int64{16 * params / 20, 12 * params / int64(ranks), 1 << 30}}
			req := &search.Request{Graph: f.graph, GlobalBatch: sequences, Ranks: ranks, Options: betas,
				Pins: search.Pins{MicroBatch: 2, Prefetch: 1, HeadRows: 8, Recompute: "full", Cache: layerBytes(f.graph)}}
			best, err := search.Search(t.Context(), req, m, nil)
			check(t, err)
			pl := best.Best.Plan
			t.Log(best.Best.Label)
			disk := 0
			for _, c := range pl.Chunks {
				if c.State == device.DiskTier {
					disk++
				}
			}
			if disk < len(pl.Chunks)-2 {
				t.Errorf("the states of %d of %d chunks are on disk", disk, len(pl.Chunks))
			}
			p, tr := f.train(t, pl, 1)
			near(t, tr, plain)
			for tier, n := range p.Height {
				if n > m.Capacity[tier] {
					t.Errorf("%v: %d bytes of %d", device.Tier(tier), n, m.Capacity[tier])
				}
			}
			if want := linkBytes(f, pl); tr.moved != want {
				t.Errorf("moved %v, want %v", tr.moved, want)
			}
			for r := range ranks {
				w := traffic{micros: pl.MicroBatches, group: pl.Group}
				if want := w.network(f.graph, pl, r); ranks > 1 && tr.network[r] != want {
					t.Errorf("rank %d: received %v, want %v", r, named(tr.network[r]), named(want))
				}
			}
		})
	}
}

// layerBytes are those of one layer's weights.
func layerBytes(g *graph.Graph) (n int64) {
	for _, p := range g.Params {
		if p.Layer == 0 {
			n += 4 * p.Elems()
		}
	}
	return n
}

// linkBytes is what the first rank moves between its tiers in a run's first step and when its parameters are read after it, if
// nothing stays in the cache from one visit of a layer to the next. Chunks are
// wholly on the device, or have weights and gradients on the host. A step that defers updates
// begins with those of the step before, though there are none, so the disk moves twice as much.
func linkBytes(f *fixture, pl *plan.Plan) (want [device.NumTiers][device.NumTiers]int64) {
	up, down := &want[device.HostTier][device.DeviceTier], &want[device.DeviceTier][device.HostTier]
	visits := int64(pl.MicroBatches / pl.Group)
	near, far := 0, 0 // runs whose chunks are updated on the device, on the host
	for _, c := range pl.Chunks {
		own, runs := shard(f.graph, c, pl.Ranks, 0)
		if c.State == device.DeviceTier {
			near += runs
			continue
		}
		far += runs
		loads := visits
		if l := f.graph.Params[c.First].Layer; l >= 0 && l < f.graph.Model.Layers {
			loads = 2 * visits
			if l == 0 && near > 0 && pl.Ranks == 1 { // nothing comes between its backward and its next forward pass
				loads = visits + 1
			}
		}
		*up += 4*own*loads + 4*own*(visits-1)
		*down += 4 * own * visits
		if c.State == device.DiskTier {
			record := 8 * ((own + plan.PadElems - 1) / plan.PadElems * plan.PadElems)
			if pl.Defer {
				record *= 2
			}
			want[device.DiskTier][device.HostTier] += record
			want[device.HostTier][device.DiskTier] += record
		}
	}
	*up += 2*4*int64(len(f.tokens)/pl.Ranks) + 4*graph.NumScalars // tokens, targets; scalars
	*down += 8                                                    // loss
	switch {                                                      // the norm's terms come together, and the clip factor goes out
	case pl.Ranks > 1:
		*up += 8 * int64(far)
		*down += 8
	case near > 0:
		*down += 8 * int64(near)
		*up += 8
	}
	return want
}
