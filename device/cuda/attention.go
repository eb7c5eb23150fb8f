package cuda

import (
	"fmt"
	"math"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// Attention has variants with the same kernels and operands: plain, for everything; tensor
// cores, for bf16 and head sizes of 16 to 256 in steps of 16; and Hopper's (wgmma), in steps of
// 32. They differ in geometry and shared memory. In the backward pass, heads wider than 128 have their
// own files, Hopper's in steps of 64.

type attentionForward struct {
	file  string
	block func(head int) attentionBlock
}

type attentionBackward struct {
	file          string
	queries, keys func(head int) attentionBlock
}

// attentionBlock is the geometry of a kernel's block: rows, threads and bytes of shared
// memory. starts is the extra shared memory with document boundaries.
type attentionBlock struct{ rows, threads, shared, starts int }

// plainTiles returns the geometry with n tiles of rows of fp32 and m tiles of weights:
// TILE, THREADS and PITCH in kernels/tiles.cuh.
func plainTiles(n, m int) func(int) attentionBlock {
	return func(head int) attentionBlock {
		rows := 32
		switch { // as many as the cards with the least shared memory have room for
		case head > 256:
			rows = 8
		case head > 128:
			rows = 16
		}
		return attentionBlock{rows, 8 * rows, 4 * (n*rows*(head+1) + m*rows*rows), 0}
	}
}

var (
	plainForward  = attentionForward{"attention", plainTiles(3, 1)}
	plainBackward = attentionBackward{"attention_bwd", plainTiles(4, 1), plainTiles(4, 2)}
)

// spread returns the bytes of n rows of head+8 bf16 numbers (PITCH in kernels/mma.cuh);
// packed, of n rows without gaps.
func spread(head, n int) int { return 2 * n * (head + 8) }
func packed(head, n int) int { return 2 * n * head }

// Queries of wide heads pass through the space for keys and values.
var tensorForward = attentionForward{"attention_mma", func(head int) attentionBlock {
	if head > 128 {
		return attentionBlock{128, 256, spread(head, 128), 4 * 128}
	}
	return attentionBlock{128, 128, spread(head, 128+2*64), 4 * 128}
}}

// tensorThreads is THREADS in kernels/attention_bwd_mma.cu.
func tensorThreads(head int) int {
	if head <= 64 {
		return 128
	}
	return 256
}

var tensorBackward = attentionBackward{
	file: "attention_bwd_mma",
	queries: func(head int) attentionBlock {
		return attentionBlock{128, tensorThreads(head), spread(head, 2*128), 4 * 128}
	},
	keys: func(head int) attentionBlock {
		return attentionBlock{128, tensorThreads(head), spread(head, 2*128) + 4*2*2*64, 4 * 2 * 64}
	},
}

// wideStats returns the bytes of the statistics of two stages of n others: lse, delta and starts, used
// or not.
func wideStats(n int) int { return 2 * 3 * 4 * n }

// wideTiles has two stages of 2 x 32 others, and the scores and weights that warps exchange.
func wideTiles(head int) attentionBlock {
	return attentionBlock{64, 256, spread(head, 2*2*32) + 4*64*32 + 2*2*64*32 + wideStats(32), 0}
}

var wideBackward = attentionBackward{"attention_bwd_wide", wideTiles, wideTiles}

// Panels begin at the next multiple of 1024 bytes. The table at the head of the kernel's file has the
// sizes; results pass through the space for the queries and what follows it.
var hopperForward = attentionForward{"attention_wgmma", func(head int) attentionBlock {
	keys, places := 64, 3
	if head > 128 {
		places = 2
	} else if head > 64 {
		keys = 128
	}
	return attentionBlock{128, 256, 1024 + packed(head, 128+2*places*keys), 4 * 128}
}}

// hopperPlaces is the number of buffers of 2 x 64 others, PLACES in the kernels' file.
func hopperPlaces(head int) int {
	if head <= 64 {
		return 5
	}
	return 4
}

// A group of warps copies for the queries kernel and, for narrow heads, for the keys kernel, which
// then loads its own rows into registers.
var hopperBackward = attentionBackward{
	file: "attention_bwd_wgmma",
	queries: func(head int) attentionBlock {
		return attentionBlock{128, 384, 1024 + packed(head, hopperPlaces(head)*2*64) + spread(head, 2*128), 4 * 128}
	},
	keys: func(head int) attentionBlock {
		threads, own := 256, packed(head, 2*128)
		if head <= 64 {
			threads, own = 384, spread(head, 2*128)
		}
		places := hopperPlaces(head)
		return attentionBlock{128, threads, 1024 + packed(head, places*2*64) + own + places*4*2*64, places * 4 * 64}
	},
}

// wideHopperTiles has two stages of 2 x 64 others, 2 x 64 own rows, and what the groups exchange.
func wideHopperTiles(head int) attentionBlock {
	return attentionBlock{64, 256, 1024 + packed(head, 3*2*64) + 4*64*64 + 2*64*64 + wideStats(64), 0}
}

var wideHopperBackward = attentionBackward{"attention_bwd_wide_wgmma", wideHopperTiles, wideHopperTiles}

// onTensorCores reports whether the tensor-core kernels support the operands.
func (b *builder) onTensorCores(ops ...device.Operand) bool {
	head := b.call.Attr.HeadDim
	if head%16 != 0 || head > 256 || !(b.call.Attr.Scale > 0) { // a positive scale preserves the order of scores
		return false
	}
	for i, o := range ops {
		name := b.call.Op.Info().Args[i].Name
		if name == "lse" || name == "delta" || name == "starts" || name == "sinks" {
			continue
		}
		if o.DType != graph.BF16 || (uint64(b.base[o.Tier])+uint64(o.Addr))%16 != 0 || o.Stride%8 != 0 {
			return false
		}
	}
	return true
}

// attentionForwardOf and attentionBackwardOf return the fastest variant that supports the operands.
func (b *builder) attentionForwardOf(ops ...device.Operand) *attentionForward {
	switch {
	case !b.onTensorCores(ops...):
		return &plainForward
	case b.hopper && b.call.Attr.HeadDim%32 == 0:
		return &hopperForward
	}
	return &tensorForward
}

func (b *builder) attentionBackwardOf(ops ...device.Operand) *attentionBackward {
	head := b.call.Attr.HeadDim
	switch {
	case !b.onTensorCores(ops...):
		return &plainBackward
	case head > 128 && b.hopper && head%64 == 0:
		return &wideHopperBackward
	case head > 128:
		return &wideBackward
	case b.hopper && head%32 == 0 && !(b.call.Attr.Limit > 0): // the scores are gone when their caps' slopes are needed
		return &hopperBackward
	}
	return &tensorBackward
}

// present returns the operands up to the last one that is not absent; at least those up to last must be present.
func (b *builder) present(last int) []device.Operand {
	ops := b.ops()
	for len(ops) > last+1 && ops[len(ops)-1].Absent() {
		ops = ops[:len(ops)-1]
	}
	return ops
}

func attention(b *builder) error {
	ops := b.present(graph.AttentionKV)
	q, err := b.queriesOf(ops[graph.AttentionQ], ops[graph.AttentionKV])
	if err != nil {
		return err
	}
	k := b.attentionForwardOf(ops...)
	return b.heads(k.file, "attention", b.call.Attr.Heads, q.rows(), q, k.block, ops...)
}

func attentionBwd(b *builder) error {
	at := &b.call.Attr
	ops := b.present(graph.AttentionBwdLSE)
	q, err := b.queriesOf(ops[graph.AttentionBwdQ], ops[graph.AttentionBwdKV])
	if err != nil {
		return err
	}
	k := b.attentionBackwardOf(ops...)
	if k == &plainBackward { // the tensor-core query kernels compute delta themselves
		grid := [3]int64{blocks(32*int64(ops[graph.AttentionBwdQ].Rows)*int64(at.Heads), threads), 1, 1} // a warp for each
		if err := b.start(attentionUnit(k.file, b.call, ops), "deltas", grid, threads, 0, b.newArgs(ops...)); err != nil {
			return err
		}
	}
	if err := b.heads(k.file, "queries", at.Heads, q.rows(), q, k.queries, ops...); err != nil {
		return err
	}
	return b.heads(k.file, "keys", at.KVHeads, q.end, q, k.keys, ops...)
}

// queries says which rows of a sequence are queries, [from, end), and the number of
// sequences: all rows of whole sequences, or a slice of one.
type queries struct{ from, end, sequences int }

func (q queries) rows() int { return q.end - q.from }

func (b *builder) queriesOf(q, kv device.Operand) (queries, error) {
	at := &b.call.Attr
	if at.Seq < 1 || at.KVHeads < 1 || at.HeadDim < 1 || at.Heads%at.KVHeads != 0 || at.Among > 1 {
		return queries{}, fmt.Errorf("there is no attention for sequences of %d tokens with %d query heads, %d key/value heads of size %d and %d ranks", at.Seq, at.Heads, at.KVHeads, at.HeadDim, at.Among)
	}
	switch {
	case q.Rows == kv.Rows && kv.Rows%at.Seq == 0:
		return queries{0, at.Seq, kv.Rows / at.Seq}, nil
	case q.Rows <= kv.Rows && kv.Rows <= at.Seq:
		return queries{kv.Rows - q.Rows, kv.Rows, 1}, nil
	}
	return queries{}, fmt.Errorf("%d queries and %d keys are neither sequences of %d nor a slice of one", q.Rows, kv.Rows, at.Seq)
}

func attentionUnit(file string, call *device.Call, ops []device.Operand) kernels.Unit {
	u := kernels.Unit{File: file, Defines: fmt.Sprintf("%sHEAD=%d", types(ops...), call.Attr.HeadDim)}
	for _, name := range []string{"starts", "sinks"} {
		if n := numberOf(name, call.Op, ops); n > 0 {
			u.Defines += fmt.Sprintf(" %s=%d", strings.ToUpper(name), n)
		}
	}
	if call.Attr.Limit > 0 {
		u.Defines += " CAP=1"
	}
	if bits := call.Attr.CacheBits; bits > 0 {
		u.Defines += fmt.Sprintf(" BITS=%d", bits)
	}
	return u
}

// numberOf returns the number of an optional operand, or 0 if it is absent.
func numberOf(name string, op graph.Op, ops []device.Operand) int {
	for i, o := range ops {
		if op.Info().Args[i].Name == name && !o.Absent() {
			return i
		}
	}
	return 0
}

// setScale sets what kernels/cap.cuh says.
func (a *args) setScale(at *graph.Attr) {
	a.f[0], a.f[1] = float32(at.Scale), float32(at.Scale)
	if at.Limit > 0 {
		a.f[0], a.f[2] = float32(at.Limit), float32(2*math.Log2E*at.Scale/at.Limit)
	}
}

// heads launches a block per tile of rows, head and sequence.
func (b *builder) heads(file, kernel string, heads, rows int, q queries, shape func(head int) attentionBlock, ops ...device.Operand) error {
	at := &b.call.Attr
	a := b.newArgs(ops...)
	a.setScale(at)
	a.seq = int32(q.end)
	block := shape(at.HeadDim)
	a.n = [8]int32{int32(q.from), int32(min(graph.SliceUnit(at.Seq), block.rows))}
	grid := [3]int64{blocks(int64(rows), int64(block.rows)), int64(heads), int64(q.sequences)}
	if numberOf("starts", b.call.Op, ops) > 0 {
		block.shared += block.starts
	}
	return b.start(attentionUnit(file, b.call, ops), kernel, grid, block.threads, block.shared, a)
}

// attentionAt writes the rows' keys and values to the cache, then launches a block per
// row and head.
func attentionAt(b *builder) error {
	at := &b.call.Attr
	ops := b.present(graph.AttentionAtPos)
	if at.KVHeads < 1 || at.HeadDim < 1 || at.Heads%at.KVHeads != 0 {
		return fmt.Errorf("there is no attention for %d query heads and %d key/value heads of size %d", at.Heads, at.KVHeads, at.HeadDim)
	}
	unit := attentionUnit("attention_at", b.call, ops)
	a := b.newArgs(ops...)
	a.setScale(at)
	a.n[0], a.n[1] = int32(at.Window), int32(graph.CacheContext(at, ops[graph.AttentionAtKV].Rows))
	rows := int64(ops[graph.AttentionAtQKV].Rows)
	if ops[graph.AttentionAtQKV].Cols == at.Heads*at.HeadDim { // queries alone
		return b.start(unit, "recall", [3]int64{rows, int64(at.Heads), 1}, threads, 0, a)
	}
	each := at.HeadDim // threads of a key or value
	if at.CacheBits > 0 {
		each = graph.CacheGroups(at.HeadDim)
	}
	if err := b.start(unit, "remember", [3]int64{blocks(rows*int64(2*at.KVHeads*each), threads), 1, 1}, threads, 0, a); err != nil {
		return err
	}
	return b.start(unit, "recall", [3]int64{rows, int64(at.Heads), 1}, threads, 0, a)
}
