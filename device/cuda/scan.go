package cuda

import (
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// What layers of Mamba2 have besides products, norms and a convolution. A scan is divided among blocks as the gated delta rule is, see
// delta.go and kernels/state_scan.cuh.

// timeSteps launches a thread per token and head.
func timeSteps(file string, rate int) operator {
	return func(b *builder) error {
		ops, at := b.ops(), &b.call.Attr
		a := b.newArgs(ops...)
		a.f[0], a.f[1] = float32(at.Least), float32(math.Inf(1))
		if at.Limit > 0 {
			a.f[1] = float32(at.Limit)
		}
		n := int64(ops[0].Rows) * int64(ops[rate].Cols)
		return b.start(kernels.Unit{File: file, Defines: types(ops...)}, file, [3]int64{blocks(n, threads), 1, 1}, threads, 0, a)
	}
}

// scanOf returns the geometry of a scan with results like o. Its chunks are those of a warp: where they end changes results by
// rounding only, but kept states are at the same tokens as on a CPU.
func scanOf(b *builder, file string, last, o int) delta {
	at := &b.call.Attr
	d := delta{heads: at.Heads, seq: at.Seq, keys: at.HeadDim, vals: b.op(o).Cols / at.Heads, chunk: min(graph.ScanChunk(at.Seq), 32), kept: graph.ScanKept(at.Seq)}
	d.setUnit(b, file, last, graph.ScanStateCols(at.Seq, d.keys*d.vals), 1)
	return d
}

// stateScan launches a block per slice of columns, head and sequence.
func stateScan(b *builder) error {
	d, o := scanOf(b, "state_scan", graph.StateScanSkip, graph.StateScanO), b.op(graph.StateScanO)
	return b.start(d.unit, "state_scan", [3]int64{d.slices(), int64(d.heads), int64(o.Rows / d.seq)}, deltaThreads, d.shared(1, 2, 0), b.newArgs(b.ops()...))
}

// stateScanBwd launches the backward pass.
func stateScanBwd(b *builder) error {
	d := scanOf(b, "state_scan_bwd", graph.StateScanBwdStates, graph.StateScanBwdDO)
	return d.backward(b, b.op(graph.StateScanBwdDO).Rows/d.seq)
}

// stateScanAt launches a block per slice of columns and head.
func stateScanAt(b *builder) error {
	at, ops := &b.call.Attr, b.ops()
	state := ops[graph.StateScanAtState]
	unit := kernels.Unit{File: "state_scan_at", Defines: fmt.Sprintf("%sKEYS=%d VALUES=%d", types(ops...), at.HeadDim, state.Cols)}
	return b.start(unit, unit.File, [3]int64{blocks(int64(state.Cols), 32), int64(at.Heads), 1}, threads, 0, b.newArgs(ops...))
}
