package cuda

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
)

// Mixtures of experts: see graph/experts.go for what these operators are part of. Slots are sorted by
// expert first, into scratch memory (kernels/dispatch.cuh); products gather and scatter rows by that.
// The host never knows where tokens go: grids are as large as any choice of experts needs, and blocks
// without work end at once.
//
// For example, 1000 slots of 8 experts in tiles of 64 rows are 23 tiles at most: 8 experts may each
// have a tile that is not full, of 1 row at least, and the other 992 rows fill 15.

// halves launches an element-wise kernel whose operands are one or two times as wide as
// y, gate beside up: they never form one long row. With weights a row of y is as many slots;
// where these have gradients too, a block sums one.
func (b *builder) halves(file string, y, weights, sums device.Operand) error {
	var ops []device.Operand
	for i := range b.call.Op.Info().Args {
		ops = append(ops, b.op(i))
	}
	slots := max(1, weights.Cols)
	cols := y.Cols / slots
	v, _ := b.vector(cols, ops[:len(ops)-bit(!weights.Absent())-bit(!sums.Absent())]...)
	defines := fmt.Sprintf("%sACT=%d SLOTS=%d SUMS=%d VEC=%d", types(ops...), b.call.Attr.Act, weights.Cols, bit(!sums.Absent()), v)
	grid, n := blocks(int64(y.Rows)*int64(y.Cols)/int64(v), threads), threads
	if !sums.Absent() {
		grid, n = int64(y.Rows)*int64(slots), min((cols/v+31)/32*32, threads)
	}
	return b.start(kernels.Unit{File: file, Defines: defines}, file, [3]int64{grid, 1, 1}, n, 0, b.newArgs(ops...))
}

// router launches a warp per token.
func (b *builder) router(file string, logits, experts device.Operand) error {
	if experts.Cols > logits.Cols {
		return fmt.Errorf("a token cannot go to %d of %d experts", experts.Cols, logits.Cols)
	}
	var ops []device.Operand
	for i := range b.call.Op.Info().Args {
		ops = append(ops, b.op(i))
	}
	a := b.newArgs(ops...)
	a.n[0] = int32(bit(b.call.Attr.Normed))
	unit := kernels.Unit{File: file, Defines: fmt.Sprintf("%sSLOTS=%d EACH=%d", types(ops...), experts.Cols, blocks(int64(logits.Cols), 32))}
	return b.start(unit, file, [3]int64{blocks(int64(logits.Rows), threads/32), 1, 1}, threads, 0, a)
}

// combine's operands are one or several times as wide as y.
func combine(b *builder) error {
	y, x, res := b.op(0), b.op(1), b.op(2)
	v, _ := b.vector(y.Cols, y, x, res)
	unit := kernels.Unit{File: "combine", Defines: fmt.Sprintf("%sSLOTS=%d VEC=%d", types(y, x, res), x.Cols/y.Cols, v)}
	return b.start(unit, "combine", [3]int64{blocks(int64(y.Rows)*int64(y.Cols)/int64(v), threads), 1, 1}, threads, 0, b.newArgs(y, x, res))
}

// sorting says how slots are sorted; see kernels/dispatch.cuh.
type sorting struct {
	seq  int // tokens whose slots, by expert, are filled up to
	unit int // multiples of this
	tile int // rows of a result's tiles; 0: there are none
}

// sort launches the sort of the experts' slots, and sets in a what products read of it.
func (b *builder) sort(s sorting, experts device.Operand, a *args) error {
	n, slots := b.call.Attr.Experts, int64(experts.Rows)*int64(experts.Cols)
	if n < 1 || experts.Cols > n {
		return fmt.Errorf("a token cannot go to %d of %d experts", experts.Cols, n)
	}
	sequences := max(1, blocks(int64(experts.Rows), int64(s.seq)))
	var tiles int64
	if s.tile > 0 {
		partial := min(slots, int64(n))
		tiles = partial + (slots-partial)/int64(s.tile)
	}
	need := 12*tiles + 4*(int64(n)+1+int64(n)*sequences+slots+int64(n)*sequences*int64(s.unit-1))
	if need > b.room {
		return fmt.Errorf("%d slots of %d experts need %d bytes of scratch memory, there are %d; hint: use smaller micro-batches", slots, n, need, b.room)
	}
	a.seq, a.n = int32(s.seq), [6]int32{int32(n), int32(sequences), int32(s.unit), int32(s.tile), int32(tiles)}
	x := *a
	x.t = [9]mat{b.mat(experts)}
	unit := kernels.Unit{File: "dispatch", Defines: fmt.Sprintf("SLOTS=%d", experts.Cols)}
	grid := [3]int64{int64(n), sequences, 1}
	if err := b.start(unit, "count", grid, threads, 0, x); err != nil {
		return err
	}
	return b.start(unit, "arrange", grid, 1024, 0, x)
}

func expertLinear(b *builder) error {
	y, x, w, experts := b.op(0), b.op(1), b.op(2), b.op(3)
	const tile = 64
	a := b.newArgs(y, x, w)
	if err := b.sort(sorting{max(experts.Rows, 1), 1, tile}, experts, &a); err != nil {
		return err
	}
	unit := kernels.Unit{File: "expert_linear", Defines: fmt.Sprintf("%sSLOTS=%d WT=%d", types(y, x, w), experts.Cols, bit(b.call.Attr.WT))}
	return b.start(unit, "expert_linear", [3]int64{int64(a.n[4]), blocks(int64(y.Cols/experts.Cols), tile), 1}, threads, 0, a)
}

func expertDW(b *builder) error {
	dw, p, q, experts := b.op(0), b.op(1), b.op(2), b.op(3)
	if b.call.Attr.WT {
		p, q = q, p
	}
	a := b.newArgs(dw, p, q)
	if err := b.sort(sorting{max(experts.Rows, 1), 1, 0}, experts, &a); err != nil {
		return err
	}
	n := b.call.Attr.Experts
	unit := kernels.Unit{File: "expert_dw", Defines: fmt.Sprintf("%sSLOTS=%d", types(dw, p, q), experts.Cols)}
	return b.start(unit, "expert_dw", [3]int64{blocks(int64(dw.Rows/n), 64), blocks(int64(dw.Cols), 64), int64(n)}, threads, 0, a)
}
