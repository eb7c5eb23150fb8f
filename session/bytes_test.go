package session

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// TestBytesClosedForm is law L3: the bytes per link of a step are those of a
// formula that knows nothing of programs, and the device moves exactly those.
//
// Everything on the host, states on disk, one chunk per parameter group of a
// segment, room for one unit's chunks only, m micro-batches:
//
//	host -> device  weights: once per visit of a segment and pass. A layer is
//	                visited in the forward and in the backward pass, once per
//	                group of micro-batches that runs layer by layer. The
//	                embedding is not read backwards. A tied embedding is read by
//	                the head too.
//	                partial gradients come back before more is added.
//	device -> host  gradients, once per visit of the backward pass.
//	disk            both moments, in and out, once per step.
func TestBytesClosedForm(t *testing.T) {
	f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
	for _, tc := range []struct{ micros, group int }{{1, 1}, {2, 2}, {4, 4}, {4, 1}, {2, 1}} {
		pl := plan.Plain(f.graph, 4/tc.micros)
		pl.MicroBatches, pl.Group = tc.micros, tc.group
		pl.HeadRows = 32
		for i := range pl.Chunks {
			pl.Chunks[i] = plan.Chunk{First: pl.Chunks[i].First, Last: pl.Chunks[i].Last,
				Weights: device.HostTier, Grads: device.HostTier, State: device.DiskTier}
		}
		pl.Cache = pl.CacheNeeded(f.graph)
		_, tr := f.train(t, pl, 1)
		visits := int64(tc.micros / tc.group)
		var want [device.NumTiers][device.NumTiers]int64
		up, down := &want[device.HostTier][device.DeviceTier], &want[device.DeviceTier][device.HostTier]
		// Forward 0..L-1, head, backward L-1..0: with room for one unit's chunks
		// no layer survives until its backward pass.
		for _, c := range pl.Chunks {
			var n, padded int64
			for i := c.First; i < c.Last; i++ {
				n += f.graph.Params[i].Elems()
			}
			padded = (n + plan.PadElems - 1) / plan.PadElems * plan.PadElems
			loads := visits // embedding and head
			if l := f.graph.Params[c.First].Layer; l >= 0 && l < f.graph.Model.Layers {
				loads = 2 * visits
			}
			*up += 4 * n * loads
			*up += 4 * n * (visits - 1)
			*down += 4 * n * visits
			want[device.DiskTier][device.HostTier] += 8 * padded
			want[device.HostTier][device.DiskTier] += 8 * padded
		}
		tokens := int64(4 * f.graph.Seq)
		*up += 2*4*tokens + 4*graph.NumScalars // tokens, targets; scalars
		*down += 8                             // loss
		if tr.moved != want {
			t.Errorf("%d micro-batches, group %d: moved %v, want %v", tc.micros, tc.group, tr.moved, want)
		}
	}
}

// TestStreamedBytesClosedForm is L3 where the device updates what lives elsewhere.
// Per element of a rank's share, with w bytes of weight, s of state (including the rest of the
// weight where operators read a narrower type), V visits, everything once per step:
//
//	                   host -> device         device -> host        disk, each way
//	state              s                      s                     s, if it is there
//	weights on host    w per load, and w      w
//	                   to be updated
//	gradients on host  4 (V-1), and 4 if      4 (V-1), and 4 if
//	                   they wait for a norm   they wait for a norm
//
// On disk, records are padded, and they travel with their padding.
func TestStreamedBytesClosedForm(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	host, disk := device.HostTier, device.DiskTier
	for _, tc := range []struct {
		ranks, micros, group int
		weights, grads, at   device.Tier
		precision            string
		state                plan.StateFormat
		shard                string
		free                 bool // nothing is clipped
	}{
		{1, 1, 1, 0, 0, host, "fp32", plan.FP32State, "", false},
		{1, 1, 1, 0, 0, disk, "fp32", plan.FP32State, "", true},
		{1, 4, 4, 0, host, host, "fp32", plan.BF16Moments, "", false},
		{1, 4, 2, host, host, host, "fp32", plan.FP32State, "", false},
		{1, 4, 1, host, host, disk, "fp32", plan.FP32State, "", true},
		{1, 2, 1, host, 0, host, "bf16", plan.FP32State, "", true},
		{1, 2, 1, host, host, disk, "bf16", plan.FP32State, "", false},
		{1, 2, 2, 0, host, disk, "bf16", plan.BF16Moments, "", false},
		{1, 2, 2, host, host, disk, "bf16", plan.BF16State, "", false},
		{1, 1, 1, 0, host, host, "bf16", plan.BF16State, "", true},
		{2, 2, 1, 0, host, host, "fp32", plan.FP32State, "grads", false},
		{2, 2, 1, 0, host, host, "fp32", plan.FP32State, "grads", true},
		{2, 1, 1, 0, 0, disk, "bf16", plan.BF16Moments, "state", false},
		{2, 2, 2, host, host, host, "bf16", plan.FP32State, "weights", false},
		{2, 2, 1, host, host, disk, "fp32", plan.FP32State, "weights", true},
		{2, 2, 1, 0, host, host, "fp32", plan.FP32State, "", false},
		{1, 4, 2, host, host, host, "int8", plan.FP32State, "", false},
		{2, 2, 1, host, host, disk, "int8", plan.BF16Moments, "weights", true},
	} {
		t.Run(fmt.Sprintf("%+v", tc), func(t *testing.T) {
			f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
			if f.state, f.free = tc.state, tc.free; tc.precision == "bf16" {
				f.store(t, graph.BF16)
			} else if tc.precision == "int8" {
				f.graph = loadInt8(t, "gpt2-untied", graph.F32, optimizer.AdamW).graph
			}
			pl := plan.Plain(f.graph, 4/tc.ranks/tc.micros)
			pl.Ranks, pl.MicroBatches, pl.Group, pl.HeadRows, pl.State = tc.ranks, tc.micros, tc.group, 32, tc.state
			for i := range pl.Chunks {
				c := &pl.Chunks[i]
				c.Weights, c.Grads, c.State, c.Shard, c.Update = tc.weights, tc.grads, tc.at, tc.shard, plan.UpdateOnDevice
				if tc.precision == "int8" && f.graph.Params[c.First].Vector { // so few bytes that some stay from a layer's forward to its backward pass
					c.Weights = device.DeviceTier
				}
			}
			pl.Cache = pl.CacheNeeded(f.graph)
			_, tr := f.train(t, pl, 1)
			for rank, moved := range tr.tiers {
				var want [device.NumTiers][device.NumTiers]int64
				up, down := &want[host][device.DeviceTier], &want[device.DeviceTier][host]
				w, s := f.graph.DType.Size(), plan.StateBytes(optimizer.AdamW, tc.state, f.graph.DType)
				if tc.precision == "int8" { // and no more state than in fp32
					w = 1
				}
				visits := int64(tc.micros / tc.group)
				for _, c := range pl.Chunks {
					own := elements(f.graph, c)
					if tc.shard != "" {
						own, _ = shard(f.graph, c, tc.ranks, rank)
					}
					record := own
					if tc.at == disk {
						record = (own + plan.PadElems - 1) / plan.PadElems * plan.PadElems
						want[disk][host] += s * record
						want[host][disk] += s * record
					}
					*up += s * record
					*down += s * record
					if c.Weights == host {
						loads := visits
						if l := f.graph.Params[c.First].Layer; l >= 0 && l < f.graph.Model.Layers {
							loads = 2 * visits
						}
						*up += w * own * loads
						*down += w * own
						*up += w * own
					}
					if tc.grads == host {
						trips := visits - 1
						if !tc.free {
							trips++
						}
						*up += 4 * own * trips
						*down += 4 * own * trips
					}
				}
				*up += 2*4*int64(4*f.graph.Seq/tc.ranks) + 4*graph.NumScalars // tokens, targets; scalars
				*down += 8 + 8                                                // loss, norm
				if moved != want {
					t.Errorf("rank %d moved %v, want %v", rank, moved, want)
				}
			}
		})
	}
}
