package cuda

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
)

// tile is the number of queries or keys of a block of attention, TILE in
// kernels/tiles.cuh.
const tile = 32

// tileBytes is the shared memory of n tiles of rows of a head and m tiles of
// weights.
func tileBytes(head, n, m int) int { return 4 * (n*tile*(head+1) + m*tile*tile) }

func attention(b *builder) error {
	return b.heads("attention", "attention", b.call.Attr.Heads, tileBytes(b.call.Attr.HeadDim, 3, 1), b.op(0), b.op(1), b.op(2))
}

func attentionBwd(b *builder) error {
	at := &b.call.Attr
	ops := []device.Operand{b.op(0), b.op(1), b.op(2), b.op(3), b.op(4), b.op(5)}
	n := int64(ops[3].Rows) * int64(at.Heads)
	unit := kernels.Unit{File: "attention_bwd", Defines: fmt.Sprintf("%sHEAD=%d", types(ops...), at.HeadDim)}
	if err := b.start(unit, "deltas", [3]int64{blocks(n, threads), 1, 1}, threads, 0, b.newArgs(ops...)); err != nil {
		return err
	}
	if err := b.heads("attention_bwd", "queries", at.Heads, tileBytes(at.HeadDim, 4, 1), ops...); err != nil {
		return err
	}
	return b.heads("attention_bwd", "keys", at.KVHeads, tileBytes(at.HeadDim, 4, 2), ops...)
}

// heads starts a block per tile, head and sequence.
func (b *builder) heads(file, kernel string, heads, shared int, ops ...device.Operand) error {
	at := &b.call.Attr
	if at.Seq < 1 || at.KVHeads < 1 || at.HeadDim < 1 || at.Heads%at.KVHeads != 0 || ops[0].Rows%at.Seq != 0 {
		return fmt.Errorf("%d rows of %d, %d heads on %d of %d numbers cannot be attended", ops[0].Rows, at.Seq, at.Heads, at.KVHeads, at.HeadDim)
	}
	a := b.newArgs(ops...)
	a.f[0] = float32(at.Scale)
	grid := [3]int64{blocks(int64(at.Seq), tile), int64(heads), int64(ops[0].Rows / at.Seq)}
	return b.start(kernels.Unit{File: file, Defines: fmt.Sprintf("%sHEAD=%d", types(ops...), at.HeadDim)}, kernel, grid, threads, shared, a)
}
