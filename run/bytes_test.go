package run

import (
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// TestBytesClosedForm is law L3: the bytes per link of a step are those of a
// formula that knows nothing of programs, and the device moves exactly them.
//
// Everything on the host, states on disk, one chunk per parameter group of a
// segment, room for one unit's chunks only, m micro-batches:
//
//	host -> device  weights: once per visit of a segment and pass. A layer is
//	                visited in the forward and in the backward pass, once per
//	                group of micro-batches that runs layer by layer. The
//	                embedding is not read backwards. A tied embedding is read by
//	                the head too.
//	                gradients that were begun come back before they go on.
//	device -> host  gradients, once per visit of the backward pass.
//	disk            both moments, in and out, once per step.
func TestBytesClosedForm(t *testing.T) {
	f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
	for _, tc := range []struct{ micros, group int }{{1, 1}, {2, 2}, {4, 4}, {4, 1}, {2, 1}} {
		pl := program.Plain(f.graph, 4/tc.micros)
		pl.MicroBatches, pl.Group = tc.micros, tc.group
		pl.HeadRows = 32
		for i := range pl.Chunks {
			pl.Chunks[i] = program.Chunk{First: pl.Chunks[i].First, Last: pl.Chunks[i].Last,
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
			padded = (n + program.PadElems - 1) / program.PadElems * program.PadElems
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
