package cuda

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// Attention comes in two kinds with the same kernels and operands: plain, for
// everything, and with tensor cores, for bf16 and head sizes of 16 to 128 in
// steps of 16. What they need differs in geometry and shared memory.

type attentionKind struct {
	suffix  string // of the files
	tile    int    // rows of a block
	threads int
	// Bytes of shared memory for a head size.
	forward, queries, keys func(head int) int
}

// tileBytes is n tiles of 32 rows of fp32 and m tiles of weights: TILE and
// PITCH in kernels/tiles.cuh.
func tileBytes(head, n, m int) int { return 4 * (n*32*(head+1) + m*32*32) }

var plainAttention = attentionKind{
	tile: 32, threads: 256,
	forward: func(head int) int { return tileBytes(head, 3, 1) },
	queries: func(head int) int { return tileBytes(head, 4, 1) },
	keys:    func(head int) int { return tileBytes(head, 4, 2) },
}

// The sums of kernels/attention_mma.cu: rows of head+8, columns of tile+8.
var tensorAttention = attentionKind{
	suffix: "_mma", tile: 64, threads: 128,
	forward: func(head int) int { return 2 * (128*(head+8) + head*72) },
	queries: func(head int) int { return 2 * (192*(head+8) + head*40) },
	keys:    func(head int) int { return 2 * (192*(head+8) + 2*head*40) },
}

// attentionKindOf chooses by what the operands allow.
func (b *builder) attentionKindOf(ops ...device.Operand) *attentionKind {
	head := b.call.Attr.HeadDim
	if head%16 != 0 || head > 128 {
		return &plainAttention
	}
	for i, o := range ops {
		name := b.call.Op.Info().Args[i].Name
		if name == "lse" || name == "delta" {
			continue
		}
		if o.DType != graph.BF16 || (uint64(b.base[o.Tier])+uint64(o.Addr))%16 != 0 || o.Stride%8 != 0 {
			return &plainAttention
		}
	}
	return &tensorAttention
}

func attention(b *builder) error {
	ops := []device.Operand{b.op(0), b.op(1), b.op(2), b.op(3)}
	if err := b.sequences(ops[2], ops[3]); err != nil {
		return err
	}
	k := b.attentionKindOf(ops...)
	return b.heads(k, "attention", "attention", b.call.Attr.Heads, k.forward, ops...)
}

func attentionBwd(b *builder) error {
	at := &b.call.Attr
	ops := []device.Operand{b.op(0), b.op(1), b.op(2), b.op(3), b.op(4), b.op(5), b.op(6), b.op(7)}
	if err := b.sequences(ops[4], ops[5]); err != nil {
		return err
	}
	k := b.attentionKindOf(ops...)
	n := int64(ops[4].Rows) * int64(at.Heads)
	if err := b.start(k.unit("attention_bwd", at.HeadDim, ops), "deltas", [3]int64{blocks(n, threads), 1, 1}, threads, 0, b.newArgs(ops...)); err != nil {
		return err
	}
	if err := b.heads(k, "attention_bwd", "queries", at.Heads, k.queries, ops...); err != nil {
		return err
	}
	return b.heads(k, "attention_bwd", "keys", at.KVHeads, k.keys, ops...)
}

// sequences checks that queries and keys are of the same whole sequences.
func (b *builder) sequences(q, kv device.Operand) error {
	at := &b.call.Attr
	if at.Seq < 1 || at.KVHeads < 1 || at.HeadDim < 1 || at.Heads%at.KVHeads != 0 || kv.Rows%at.Seq != 0 && kv.Rows > at.Seq {
		return fmt.Errorf("%d rows of %d, %d heads on %d of %d numbers cannot be attended", kv.Rows, at.Seq, at.Heads, at.KVHeads, at.HeadDim)
	}
	if q.Rows != kv.Rows || kv.Rows%at.Seq != 0 || at.Acc {
		return fmt.Errorf("attention to slices of sequences (%d queries, keys of %d rows in sequences of %d) has no CUDA kernel; hint: a plan without slices", q.Rows, kv.Rows, at.Seq)
	}
	return nil
}

func (k *attentionKind) unit(file string, head int, ops []device.Operand) kernels.Unit {
	return kernels.Unit{File: file + k.suffix, Defines: fmt.Sprintf("%sHEAD=%d", types(ops...), head)}
}

// heads starts a block per tile, head and sequence.
func (b *builder) heads(k *attentionKind, file, kernel string, heads int, shared func(int) int, ops ...device.Operand) error {
	at := &b.call.Attr
	a := b.newArgs(ops...)
	a.f[0] = float32(at.Scale)
	grid := [3]int64{blocks(int64(at.Seq), int64(k.tile)), int64(heads), int64(ops[0].Rows / at.Seq)}
	return b.start(k.unit(file, at.HeadDim, ops), kernel, grid, k.threads, shared(at.HeadDim), a)
}
