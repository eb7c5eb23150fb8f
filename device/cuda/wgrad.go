package cuda

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// Gradients of weights are sums over tokens, and L1 wants their bits to be the same
// however tokens are cut into micro-batches. The library keeps its order of sums to
// itself, so to it they go sequence by sequence, and each product takes up and puts down
// the whole gradient in fp32: 8 bytes of memory per element and sequence. At 1024 tokens
// that is more than half as long as multiplying, on most cards. kernels/wgrad_mma.cu takes
// all tokens at once, since it knows where its sums may be cut. But on Hopper, and on
// Blackwell's large cards, the library has faster instructions.
//
// Who is chosen decides about bits, so it depends on nothing but the card, the matrix and
// the length of a sequence. The tile does not, and is chosen for speed alone. For example,
// a gradient of 768 x 3072 on the 108 SMs of an A100 is 72 tiles of 128 x 256: one wave of
// them costs less than two of the 144 of 128 x 128. With sequences of 1024 the library
// would take 1.3 times as long.
//
// Known weakness: the rates below are counted or published, not measured. TestRateSums,
// which tools/gpu-check.sh runs, puts both ways side by side.

// sumTile is a block of kernels/wgrad_mma.cu and the part of the rate of mma.sync that it
// can reach while an SM has one of it.
type sumTile struct {
	rows, cols, down, across int
	rate                     float64
}

var sumTiles = []sumTile{{128, 256, 2, 4, 0.9}, {128, 160, 2, 2, 0.85}, {128, 128, 2, 2, 0.8}, {64, 128, 2, 2, 0.65}}

// stageTokens and stages are DEEP and STAGES there.
const (
	stageTokens = 32
	stages      = 3
)

func (s sumTile) shared() int { return 2 * stages * stageTokens * (s.rows + 8 + s.cols + 8) }

// time is how long a token takes the SMs, in what one SM multiplies at the full rate.
func (s sumTile) time(m, n, sms int) float64 {
	tiles := blocks(int64(m), int64(s.rows)) * blocks(int64(n), int64(s.cols))
	return float64(blocks(tiles, int64(sms))) * float64(s.rows*s.cols) / s.rate
}

// What a product of the library costs besides multiplying, which it is taken to do in the
// same tiles at the full rate.
const (
	// rewriting is in how many tokens it multiplies for as long as it takes to read and
	// write the fp32 result: a multiply-add an element and token, over 8 bytes an element.
	// A100, H200, 4090: 530 to 700.
	rewriting = 600
	beginning = 4e6 // multiply-adds of one SM while it starts and ends: some 2 us
)

// ownRate is the rate of our kernel, of that of the library's, by the major compute
// capability: the instructions are the same, older, or much older.
func ownRate(major int) float64 {
	switch major {
	case 9:
		return 0.6
	case 10, 11:
		return 0.25
	}
	return 0.9
}

// ownSums reports whether the gradient of a weight of m x n is summed by our kernel, and
// in which tiles. Of an unknown card it is the library's, if there is one.
func (t target) ownSums(m, n int) (tile sumTile, own bool) {
	sms := max(t.sms, 1)
	for i, s := range sumTiles {
		if i == 0 || s.time(m, n, sms) < tile.time(m, n, sms) {
			tile = s
		}
	}
	if !t.library || t.sumRows < 1 || t.sms < 1 {
		return tile, !t.library
	}
	multiply, besides := tile.time(m, n, sms), (float64(m)*float64(n)/float64(sms)*rewriting+beginning)/float64(t.sumRows)
	return tile, multiply/ownRate(t.major) < multiply+besides
}

// sumsSuit reports whether the kernel can take the operands of y = a^T.b: their rows begin
// at whole pieces, and y's elements come in pairs.
func (b *builder) sumsSuit(y, x, dy device.Operand) bool {
	begin := func(o device.Operand, d graph.DType, bytes uint64) bool {
		return o.DType == d && (uint64(b.base[o.Tier])+uint64(o.Addr))%bytes == 0 && o.Stride*int(d.Size())%int(bytes) == 0
	}
	return begin(y, graph.F32, 8) && y.Cols%2 == 0 && begin(x, graph.BF16, 16) && begin(dy, graph.BF16, 16)
}

// wgrad starts the kernel.
func (b *builder) wgrad(s sumTile, y, x, dy device.Operand) error {
	a := b.newArgs(y, x, dy)
	piece := x.Rows
	if b.sumRows > 0 {
		piece = min(piece, b.sumRows)
	}
	a.n = [6]int32{int32(piece)}
	if piece > 0 {
		a.n[1] = int32(blocks(int64(piece), stageTokens)*int64(x.Rows/piece) + blocks(int64(x.Rows%piece), stageTokens))
	}
	unit := kernels.Unit{File: "wgrad_mma", Defines: fmt.Sprintf("ROWS=%d COLS=%d DOWN=%d ACROSS=%d", s.rows, s.cols, s.down, s.across)}
	grid := [3]int64{blocks(int64(y.Rows), int64(s.rows)), blocks(int64(y.Cols), int64(s.cols)), 1}
	return b.start(unit, "wgrad", grid, 32*s.down*s.across, s.shared(), a)
}
