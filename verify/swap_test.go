package verify

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// TestRetentionText is L5 for retentions, and says what is refused.
func TestRetentionText(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		r := samples.RandomRetention(rng)
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var back plan.Retention
		if err := json.Unmarshal(text, &back); err != nil || back != r {
			t.Fatalf("%s became %v: %v", text, back, err)
		}
	}
	for _, bad := range []string{"", "some", "input", "input recomputed", "input remade", "input host 0.5", "attention disk 0.25", "linear host 2", "linear host -1",
		"linear host NaN", "linear device 0.5", "light moon", "light host 0", "mind host"} {
		var r plan.Retention
		if err := r.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q was read as %v", bad, r)
		}
	}
}

// swapped is the plan of a GPT whose parameters are on the device, with one
// retention for the first layers and the last two kept.
func swapped(g *graph.Graph, sequences, micros int, keep plan.Retention) *plan.Plan {
	pl := plan.Plain(g, sequences/micros)
	pl.MicroBatches = micros
	for l := range g.Model.Layers - 2 {
		pl.Activations[l] = keep
	}
	return pl
}

// moved sums the bytes of the activations that an instruction stream carries.
func moved(p *program.Program) (bytes [device.NumStreams]int64) {
	for i := range p.Instrs {
		in := &p.Instrs[i]
		if in.Op == graph.Copy && p.Buffers[in.Args[0].Buf].Class == program.ClassActivations {
			bytes[in.Stream] += int64(in.Args[1].Rows) * int64(in.Args[1].Cols) * p.Buffers[in.Args[1].Buf].DType.Size()
		}
	}
	return bytes
}

// TestSwapBytes is law L3 for activations, in MEMO's units of tokens times
// width: the input and attention's output are one each (plus its softmax
// denominators), the products 8 (query, key, value, the attention's
// projection, 4 of the feed-forward), the norms one each (plus statistics), the
// activation function 4. Whatever the micro-batches, each byte moves once.
func TestSwapBytes(t *testing.T) {
	const layers, width, heads, seq, sequences = 5, 64, 4, 128, 4
	g := samples.BuildGPT(t, layers, width, heads, 96, seq, true)
	for _, micros := range testkit.Sample([]int{1, 2, 4}, 1, 3) {
		n := int64(seq * sequences)
		for _, tc := range []struct {
			keep    plan.Retention
			perLine float64 // elements per token and layer
		}{
			{plan.Recomputed("none"), 0},
			{plan.Recomputed("full"), 0},
			{plan.Retention{{Tier: device.HostTier, Share: 1}, plan.Kept, plan.Kept, plan.Kept}, width},
			{plan.Retention{plan.Kept, {Tier: device.HostTier, Share: 1}, plan.Kept, plan.Remade}, width + heads},
			{plan.Retention{plan.Kept, plan.Kept, {Tier: device.HostTier, Share: 0.75}, plan.Remade}, 0.75 * 8 * width},
			{plan.SwapOf(device.HostTier, 0), 2*width + heads},
			{plan.SwapOf(device.HostTier, 0.25), 2*width + heads + 0.25*(14*width+4)},
			{plan.SwapOf(device.HostTier, 1), 16*width + 4 + heads},
			{plan.SwapOf(device.DiskTier, 0.5), 2*width + heads + 0.5*(14*width+4)},
		} {
			p := mustLower(t, g, swapped(g, sequences, micros, tc.keep))
			want := int64(tc.perLine * float64(4*n*(layers-2)))
			var disk int64
			if tc.keep[plan.InputAct].Tier == device.DiskTier {
				disk = want
			}
			got := moved(p)
			for s, b := range map[device.Stream]int64{device.DevToHost: want, device.HostToDev: want, device.DiskWrite: disk, device.DiskRead: disk} {
				if got[s] != b {
					t.Errorf("%d micro-batches, %v: %d bytes on %v, want %d", micros, tc.keep, got[s], s, b)
				}
			}
		}
	}
}

// TestSwapPeak is half of L2: layers whose activations wait on the host add
// nothing to the device's memory, and to the host's exactly what leaves the device.
func TestSwapPeak(t *testing.T) {
	const width, heads, seq = 64, 4, 64
	height := func(layers int, keep plan.Retention, parameters device.Tier) int64 {
		g := samples.BuildGPT(t, layers, width, heads, 64, seq, true)
		pl := swapped(g, 4, 1, keep)
		for i := range pl.Chunks { // out of the way of the tier that is measured
			pl.Chunks[i] = plan.Chunk{First: pl.Chunks[i].First, Last: pl.Chunks[i].Last, Weights: parameters, Grads: parameters, State: parameters}
		}
		pl.Cache = pl.CacheNeeded(g)
		return mustLower(t, g, pl).Height[device.HostTier-parameters]
	}
	const n = 4 * seq
	for _, share := range []float64{0, 0.25, 1} {
		keep := plan.SwapOf(device.HostTier, share)
		if small, large := height(8, keep, device.HostTier), height(11, keep, device.HostTier); small != large {
			t.Errorf("share %v: three layers more take %d bytes more of the device", share, large-small)
		}
		want := int64(3 * 4 * n * (2*width + heads + share*(14*width+4)))
		if small, large := height(8, keep, device.DeviceTier), height(11, keep, device.DeviceTier); large-small != want {
			t.Errorf("share %v: three layers more take %d bytes of the host, want %d", share, large-small, want)
		}
	}
}

// TestLinearMemory: the memory of a step is a + c times the tokens, exactly, in
// every tier and for every retention; nothing grows faster with the sequence. In
// units of tokens times width, c on the device is what one layer's backward pass
// works on, whatever the number of layers.
func TestLinearMemory(t *testing.T) {
	const layers, width, heads = 4, 64, 4
	for _, keep := range []plan.Retention{plan.Recomputed("none"), plan.Recomputed("full"), plan.SwapOf(device.HostTier, 0), plan.SwapOf(device.HostTier, 0.5), plan.SwapOf(device.DiskTier, 1)} {
		var h [4][device.NumTiers]int64
		for i := range h {
			seq := 1024 << i
			g := samples.BuildGPT(t, layers, width, heads, 256, 8192, true)
			g, err := graph.Build(g.Model, seq, graph.F32) // the same positions for all
			if err != nil {
				t.Fatal(err)
			}
			pl := swapped(g, 1, 1, keep)
			pl.HeadRows = 256
			p, err := lower.Lower(context.Background(), g, pl, lower.Options{Clip: 1, Capacity: program.NoLimits, Thorough: true}) // as the program that runs
			if err != nil {
				t.Fatal(err)
			}
			h[i] = p.Height
		}
		for tier := range device.NumTiers {
			slope := h[1][tier] - h[0][tier]
			for i := 1; i < 3; i++ {
				if d := h[i+1][tier] - h[i][tier]; d != slope<<i {
					t.Errorf("%v, %v: from %d to %d tokens %d bytes more, not %d", keep, tier, 1024<<i, 2048<<i, d, slope<<i)
				}
			}
			if tier == device.DeviceTier {
				t.Logf("%v: %.2f units of tokens times width on the device, %.2f on the host", keep,
					float64(slope)/(4*1024*width), float64(h[1][device.HostTier]-h[0][device.HostTier])/(4*1024*width))
			}
		}
	}
}

// TestSwapPlaces: with more slots the copies have more time and the device's
// memory grows; the program stays safe.
func TestSwapPlaces(t *testing.T) {
	g := samples.BuildGPT(t, 8, 64, 4, 64, 64, true)
	var last int64
	for slots := 1; slots <= 4; slots++ {
		pl := swapped(g, 4, 2, plan.SwapOf(device.HostTier, 0.5))
		pl.Slots = slots
		p := mustLower(t, g, pl)
		if h := p.Height[device.DeviceTier]; h < last {
			t.Errorf("%d slots need %d bytes, fewer need %d", slots, h, last)
		} else {
			last = h
		}
		if err := Verify(p); err != nil {
			t.Error(err)
		}
	}
}

// TestRecomputedRows: recomputing a share of the rows takes that share of the
// arithmetic, and attention is never recomputed.
func TestRecomputedRows(t *testing.T) {
	g := samples.BuildGPT(t, 6, 64, 4, 64, 128, true)
	flops := func(keep plan.Retention) (sum int64) {
		p := mustLower(t, g, swapped(g, 2, 1, keep))
		var d []graph.Dim
		for i := range p.Instrs {
			if in := &p.Instrs[i]; in.Key.Dir == program.Recompute {
				d = p.Dims(in, d)
				sum += in.Op.FLOPs(&in.Attr, d)
				if in.Op == graph.Attention {
					t.Errorf("%v makes attention again", keep)
				}
			}
		}
		return sum
	}
	all := flops(plan.SwapOf(device.HostTier, 0))
	if want := int64(4 * 2 * 256 * 8 * 64 * 64); all != want {
		t.Errorf("all rows take %d FLOP, want %d", all, want)
	}
	for _, k := range []int64{1, 5, 12, 16} {
		if got := flops(plan.SwapOf(device.HostTier, float64(k)/16)); got != all/16*(16-k) {
			t.Errorf("without %d sixteenths they take %d FLOP of %d", k, got, all)
		}
	}
}

// TestKeptAlike: a retention that keeps everything is the plain program.
func TestKeptAlike(t *testing.T) {
	g := samples.BuildGPT(t, 3, 64, 4, 64, 32, true)
	a, b := mustLower(t, g, plan.Plain(g, 2)), mustLower(t, g, swapped(g, 2, 1, plan.Retention{plan.Kept, plan.Kept, plan.Kept, plan.Kept}))
	if !reflect.DeepEqual(a, b) || slices.ContainsFunc(b.Instrs, func(in program.Instr) bool { return in.Key.Dir == program.Recompute }) {
		t.Error("the programs differ")
	}
}
