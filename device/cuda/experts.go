package cuda

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// Mixtures of experts; graph/experts.go explains what these operators are part of. Slots are first
// sorted by expert, into scratch memory (kernels/dispatch.cuh), and products gather and scatter rows in
// that order. The host never knows where tokens go: grids are large enough for any choice of experts,
// and blocks without work end at once.
//
// For example, 1000 slots of 8 experts in tiles of 64 rows are 23 tiles at most: 8 experts may each
// have a tile that is not full, of 1 row at least, and the other 992 rows fill 15.

// router launches a warp per token. With balance, the loss evens out the use of experts, so their slots
// in each sequence are counted first.
func (b *builder) router(file string, logits, experts device.Operand, balance bool) error {
	if experts.Cols > logits.Cols {
		return fmt.Errorf("a token cannot be routed to %d of %d experts", experts.Cols, logits.Cols)
	}
	ops := b.ops()
	a := b.newArgs(ops...)
	biased := b.call.Op == graph.Route && !ops[graph.RouteBias].Absent()
	attr := &b.call.Attr
	a.n[6], a.f[1] = int32(bit(attr.Sigmoid)), float32(cmp.Or(attr.Alpha, 1))
	a.n[2], a.n[5], a.f[0] = graph.ScalarLossScale, int32(bit(b.call.Attr.Normed)), float32(b.call.Attr.Scale)
	if balance {
		if err := b.countSlots(experts, logits.Cols, &a); err != nil {
			return err
		}
	}
	groups := ""
	if n := attr.Groups; n > 0 && b.call.Op == graph.Route {
		groups = fmt.Sprintf(" GROUPS=%d SIZE=%d BEST=%d", n, logits.Cols/n, attr.Best)
	}
	unit := kernels.Unit{File: file, Defines: fmt.Sprintf("%sSLOTS=%d EACH=%d BALANCE=%d BIAS=%d%s", types(ops...), experts.Cols, blocks(int64(logits.Cols), 32), bit(balance), bit(biased), groups)}
	return b.start(unit, file, [3]int64{blocks(int64(logits.Rows), threads/32), 1, 1}, threads, 0, a)
}

// countSlots launches the count of the experts' slots in each sequence, and sets in a where to find the
// counts.
func (b *builder) countSlots(experts device.Operand, n int, a *args) error {
	sequences := blocks(int64(experts.Rows), int64(max(b.call.Attr.Seq, 1)))
	if need := 4 * (int64(n) + 1 + int64(n)*sequences); need > b.room {
		return fmt.Errorf("counting %d experts in %d sequences needs %d bytes of scratch memory, but there are %d; hint: use smaller micro-batches", n, sequences, need, b.room)
	}
	a.seq, a.n[0], a.n[1] = int32(b.call.Attr.Seq), int32(n), int32(sequences)
	x := *a
	x.t = [9]mat{b.mat(experts)}
	unit := kernels.Unit{File: "dispatch", Defines: fmt.Sprintf("SLOTS=%d", experts.Cols)}
	return b.start(unit, "count", [3]int64{int64(n), sequences, 1}, threads, 0, x)
}

// combine's operands are as wide as y or a multiple of that.
func combine(b *builder) error {
	y, x, res := b.op(graph.CombineY), b.op(graph.CombineX), b.op(graph.CombineRes)
	v, _ := b.vector(y.Cols, y, x, res)
	unit := kernels.Unit{File: "combine", Defines: fmt.Sprintf("%sSLOTS=%d VEC=%d", types(y, x, res), x.Cols/max(y.Cols, 1), v)}
	return b.start(unit, "combine", [3]int64{blocks(int64(y.Rows)*int64(y.Cols)/int64(v), threads), 1, 1}, threads, 0, b.newArgs(y, x, res))
}

// sorting says how slots are sorted; see kernels/dispatch.cuh.
type sorting struct {
	seq  int // tokens of a group, in which each expert's slots are padded
	unit int // to a multiple of this
	tile int // rows of a result's tiles; 0: no tiles
}

// experts returns the operand with each token's experts, and how many experts there are in all.
func (b *builder) experts(operand int) (experts device.Operand, n int, err error) {
	if experts, n = b.op(operand), b.call.Attr.Experts; experts.Cols < 1 || experts.Cols > n {
		err = fmt.Errorf("a token cannot be routed to %d of %d experts", experts.Cols, n)
	}
	return experts, n, err
}

// sort launches the sort of the experts' slots, and sets in a what products read of the result.
func (b *builder) sort(s sorting, experts device.Operand, a *args) error {
	n, slots := b.call.Attr.Experts, int64(experts.Rows)*int64(experts.Cols)
	sequences := max(1, blocks(int64(experts.Rows), int64(s.seq)))
	filled := sequences * min(int64(n), int64(s.seq)*int64(experts.Cols)) * int64(s.unit-1)
	var tiles int64
	if s.tile > 0 {
		partial := min(slots, int64(n))
		tiles = partial + (slots-partial)/int64(s.tile)
	}
	need := 12*tiles + 4*(int64(n)+1+int64(n)*sequences+slots+filled)
	if need > b.room {
		return fmt.Errorf("%d slots of %d experts need %d bytes of scratch memory, but there are %d; hint: use smaller micro-batches", slots, n, need, b.room)
	}
	a.seq, a.n = int32(s.seq), [8]int32{int32(n), int32(sequences), int32(s.unit), int32(s.tile), int32(tiles)}
	x := *a
	x.t = [9]mat{b.mat(experts)}
	unit := kernels.Unit{File: "dispatch", Defines: fmt.Sprintf("SLOTS=%d", experts.Cols)}
	grid := [3]int64{int64(n), sequences, 1}
	if err := b.start(unit, "count", grid, threads, 0, x); err != nil {
		return err
	}
	return b.start(unit, "arrange", grid, 1024, 0, x)
}

// expertTiles are the tiles of kernels/expert_linear_mma.cu and expert_dw_mma.cu or, on Hopper, of the
// versions with wgmma. The choice of tile changes no bit.
var expertTiles = map[bool][]sumTile{
	false: {{128, 256, 2, 4, 0.9}, {128, 128, 2, 2, 0.8}, {64, 256, 1, 4, 0.8}, {64, 128, 1, 2, 0.7}},
	true:  {{192, 256, 0, 0, 1}, {128, 256, 0, 0, 1}, {128, 128, 0, 0, 0.8}, {64, 256, 0, 0, 0.8}, {64, 128, 0, 0, 0.67}},
}

// packedTiles are those for packed weights. These pass through registers, so more threads share the
// same sums. Tiles of fewer rows have more to unpack for each product.
var packedTiles = map[bool][]sumTile{
	false: {{128, 256, 2, 4, 0.9}, {128, 128, 2, 2, 0.8}, {64, 256, 2, 4, 0.75}, {64, 128, 2, 2, 0.65}},
	true:  {{256, 128, 0, 0, 0.85}, {128, 128, 0, 0, 0.7}, {64, 128, 0, 0, 0.45}},
}

// fastest returns the fastest tile, where number says how many of a kind are needed.
func (t target) fastest(tiles []sumTile, number func(sumTile) int64) sumTile {
	return slices.MinFunc(tiles, func(x, y sumTile) int {
		return cmp.Compare(x.waves(number(x), t.sms), y.waves(number(y), t.sms))
	})
}

// linearTile returns the tile for rows of slots, with half a tile of zeros per expert on average.
func (t target) linearTile(slots, out, experts int, packed bool) sumTile {
	tiles := expertTiles[t.hopper]
	if packed {
		tiles = packedTiles[t.hopper]
	}
	return t.fastest(tiles, func(s sumTile) int64 {
		return blocks(int64(slots)+int64(min(slots, experts)*s.rows/2), int64(s.rows)) * blocks(int64(out), int64(s.cols))
	})
}

// dwTile returns the tile for matrices of m x n.
func (t target) dwTile(m, n, experts int) sumTile {
	return t.fastest(expertTiles[t.hopper], func(s sumTile) int64 {
		return blocks(int64(m), int64(s.rows)) * blocks(int64(n), int64(s.cols)) * int64(experts)
	})
}

// linearStages is the shared memory of kernels/expert_linear_mma.cu and expert_linear_wgmma.cu: STAGES
// places. In the former, rows of weights have gaps unless the weights are transposed.
func (s sumTile) linearStages(wt bool) int {
	if s.down == 0 {
		return s.places(4)
	}
	return 2 * 4 * 32 * (s.rows + s.cols + 8*bit(!wt))
}

// pieces reports whether operands are bf16 whose rows, and the slots in them, begin at multiples of 16
// bytes. widths holds each operand's slot width.
func (b *builder) pieces(ops []device.Operand, widths ...int) bool {
	for i, o := range ops {
		if !b.begins(o, graph.BF16, 16) || o.Cols != widths[i] && widths[i]%8 != 0 {
			return false
		}
	}
	return true
}

// expertLinear unpacks packed weights on their way to shared memory, since scratch memory has no room
// for those of all experts.
//
// Known weakness: a single output, such as the part of the weights' gradient that comes from biases,
// takes as long as 64 without tensor cores.
func expertLinear(b *builder) error {
	experts, n, err := b.experts(graph.ExpertLinearExperts)
	if err != nil {
		return err
	}
	y, x, w, wt := b.op(graph.ExpertLinearY), b.op(graph.ExpertLinearX), b.op(graph.ExpertLinearW), b.call.Attr.WT
	slots := experts.Cols
	in, out := x.Cols, y.Cols/slots
	if b.call.Attr.Slots {
		in /= slots
	}
	packed, piece := b.call.Attr.NF4, uint64(16)
	if packed {
		piece = 4
	}
	file, defines, tile, threads, shared := "expert_linear", types(y, x, w), sumTile{rows: 64, cols: 64}, threads, 0
	if out%8 == 0 && b.pieces([]device.Operand{y, x}, out, in) && b.begins(w, graph.BF16, piece) {
		var suffix string
		tile = b.linearTile(experts.Rows*slots, out, n, packed)
		suffix, defines, threads = tile.variant()
		file, shared = file+suffix, tile.linearStages(wt)
	}
	defines = fmt.Sprintf("%s SLOTS=%d WT=%d", strings.TrimSpace(defines), slots, bit(wt))
	bias, weights := b.op(graph.ExpertLinearBias), b.op(graph.ExpertLinearWeights)
	if !bias.Absent() {
		defines += fmt.Sprintf(" T3=%s BIAS=%d", bias.DType, 1+bit(!weights.Absent()))
	}
	a := b.newArgs(y, x, w, bias, weights)
	if packed {
		defines += " NF4=1"
		if a.t[graph.ExpertLinearW].cols = int32(out); wt {
			a.t[graph.ExpertLinearW].cols = int32(in)
		}
	}
	if err := b.sort(sorting{max(experts.Rows, 1), 1, tile.rows}, experts, &a); err != nil {
		return err
	}
	return b.start(kernels.Unit{File: file, Defines: defines}, "expert_linear", [3]int64{int64(a.n[4]) * blocks(int64(out), int64(tile.cols)), 1, 1}, threads, shared, a)
}

// expertDB launches a thread for VEC columns of each expert.
func expertDB(b *builder) error {
	experts, n, err := b.experts(graph.ExpertDBExperts)
	if err != nil {
		return err
	}
	db, dy, weights := b.op(graph.ExpertDBDB), b.op(graph.ExpertDBDY), b.op(graph.ExpertDBWeights)
	v, _ := b.vector(db.Cols, db, dy)
	a := b.newArgs(db, dy, weights)
	if err := b.sort(sorting{max(experts.Rows, 1), 1, 0}, experts, &a); err != nil {
		return err
	}
	unit := kernels.Unit{File: "expert_db", Defines: fmt.Sprintf("%sSLOTS=%d WEIGHTS=%d VEC=%d", types(db, dy), experts.Cols, bit(!weights.Absent()), v)}
	return b.start(unit, "expert_db", [3]int64{blocks(int64(db.Cols), int64(threads*v)), int64(n), 1}, threads, 0, a)
}

// expertDW: fp32 operands are added one by one, so calls may continue the chain anywhere. What tensor
// cores add at once must not depend on the calls, which cut tokens between sequences.
func expertDW(b *builder) error {
	experts, n, err := b.experts(graph.ExpertDWExperts)
	if err != nil {
		return err
	}
	dw, p, q := b.op(graph.ExpertDWDW), b.op(graph.ExpertDWX), b.op(graph.ExpertDWDY)
	if b.call.Attr.WT {
		p, q = q, p
	}
	m := dw.Rows / n
	file, defines, tile, threads, shared := "expert_dw", types(dw, p, q), sumTile{rows: 64, cols: 64}, threads, 0
	sorted := sorting{max(experts.Rows, 1), 1, 0}
	if b.begins(dw, graph.F32, 8) && dw.Cols%2 == 0 && b.pieces([]device.Operand{p, q}, m, dw.Cols) {
		tile = b.dwTile(m, dw.Cols, n)
		var suffix string
		suffix, defines, threads = tile.variant()
		if shared = tile.places(4); tile.down > 0 {
			_, _, _, shared = tile.shape() // the same as in wgrad_mma.cu
		}
		file += suffix
		sorted = sorting{max(b.call.Attr.Seq, 1), 16, 0}
	}
	a := b.newArgs(dw, p, q)
	if err := b.sort(sorted, experts, &a); err != nil {
		return err
	}
	unit := kernels.Unit{File: file, Defines: fmt.Sprintf("%s SLOTS=%d", strings.TrimSpace(defines), experts.Cols)}
	return b.start(unit, "expert_dw", [3]int64{blocks(int64(m), int64(tile.rows)) * blocks(int64(dw.Cols), int64(tile.cols)), int64(n), 1}, threads, shared, a)
}
