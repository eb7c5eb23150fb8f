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
// that is more than half as long as multiplying, on most cards. kernels/wgrad_mma.cu, and on
// Hopper wgrad_wgmma.cu, take all tokens at once, since they know where sums may be cut. But on
// Blackwell's large cards the library has faster instructions, and on Hopper copies that cost less.
//
// Who is chosen decides about bits, so it depends on nothing but the card (and whether the compiler
// knows all its instructions), the matrix and the length of a sequence. The tile does not, and is chosen for speed alone. For example,
// a gradient of 768 x 3072 on the 108 SMs of an A100 is 72 tiles of 128 x 256: one wave of
// them costs less than two of the 144 of 128 x 128. With sequences of 1024 the library
// would take 1.3 times as long.
//
// Known weakness: the rates below are counted or published, not measured. TestRateSums,
// which tools/gpu-check.sh runs, puts both ways side by side.

// sumTile is a block of kernels/wgrad_mma.cu in so many warps, or of wgrad_wgmma.cu, and the
// part of its instructions' rate that it can reach while an SM has one of it.
type sumTile struct {
	rows, cols   int
	down, across int // warps; 0: groups of four on Hopper
	rate         float64
}

var (
	sumTiles = []sumTile{{128, 256, 2, 4, 0.9}, {128, 160, 2, 2, 0.85}, {128, 128, 2, 2, 0.8}, {64, 128, 2, 2, 0.65}}
	// Hopper's instructions read both operands from shared memory, every group for itself: 128
	// bytes a clock, in which it multiplies 2048 times. At 128 x 128 and 16 tokens that is 128 clocks
	// of multiplying, and 160 for 2 x (2 + 4) KiB to the tensor cores and 8 KiB that come.
	hopperTiles = []sumTile{{192, 256, 0, 0, 1}, {192, 192, 0, 0, 1}, {192, 128, 0, 0, 0.86}, {128, 256, 0, 0, 1}, {128, 192, 0, 0, 0.92},
		{128, 160, 0, 0, 0.87}, {128, 128, 0, 0, 0.8}, {64, 128, 0, 0, 0.67}, {64, 96, 0, 0, 0.6}}
)

// shape is how the kernels are started: stageTokens is DEEP there, and bytes of shared memory are STAGES
// places, in wgrad_mma.cu with gaps behind rows, in wgrad_wgmma.cu from the next multiple of 1024 on.
func (s sumTile) shape() (unit kernels.Unit, stageTokens, threads, shared int) {
	defines := fmt.Sprintf("ROWS=%d COLS=%d", s.rows, s.cols)
	if s.down == 0 {
		return kernels.Unit{File: "wgrad_wgmma", Defines: defines}, 64, 2 * s.rows, 1024 + 2*4*64*(s.rows+s.cols)
	}
	defines += fmt.Sprintf(" DOWN=%d ACROSS=%d", s.down, s.across)
	return kernels.Unit{File: "wgrad_mma", Defines: defines}, 32, 32 * s.down * s.across, 2 * 3 * 32 * (s.rows + 8 + s.cols + 8)
}

// time is how long a token takes the SMs, in what one SM multiplies at the full rate. On Hopper that is so
// much that the second-level cache is a bound too: it gives all SMs together some 32 bytes a clock
// each, an element of an operand in the time of 128 multiply-adds.
func (s sumTile) time(m, n, sms int) float64 {
	const fetching = 128
	tiles := blocks(int64(m), int64(s.rows)) * blocks(int64(n), int64(s.cols))
	t := float64(blocks(tiles, int64(sms))) * float64(s.rows*s.cols) / s.rate
	if s.down == 0 {
		t = max(t, float64(tiles)*float64(s.rows+s.cols)*fetching/float64(sms))
	}
	return t
}

// What a product of the library costs besides multiplying, which it is taken to do in the
// same tiles at the full rate, and as fast as the caches let ours.
const (
	// rewriting is in how many tokens it multiplies for as long as it takes to read and
	// write the fp32 result: a multiply-add an element and token, over 8 bytes an element.
	// A100, H200, 4090: 530 to 700.
	rewriting = 600
	beginning = 4e6 // multiply-adds of one SM while it starts and ends: some 2 us
)

// ownRate is the rate of our kernel's instructions, of that of the library's: they are the
// same, are fed by threads instead of by bulk copies, are older, or much older.
func (t target) ownRate() float64 {
	switch {
	case t.hopper:
		return 0.8
	case t.major == 9:
		return 0.6
	case t.major == 10 || t.major == 11:
		return 0.25
	}
	return 0.9
}

// ownSums reports whether the gradient of a weight of m x n is summed by our kernel, and
// in which tiles. Of an unknown card it is the library's, if there is one.
func (t target) ownSums(m, n int) (tile sumTile, own bool) {
	sms, tiles := max(t.sms, 1), sumTiles
	if t.hopper {
		tiles = hopperTiles
	}
	for i, s := range tiles {
		if i == 0 || s.time(m, n, sms) < tile.time(m, n, sms) {
			tile = s
		}
	}
	if !t.library || t.sumRows < 1 || t.sms < 1 {
		return tile, !t.library
	}
	multiply, besides := tile.time(m, n, sms), (float64(m)*float64(n)/float64(sms)*rewriting+beginning)/float64(t.sumRows)
	return tile, multiply/t.ownRate() < multiply+besides
}

// sumsSuit reports whether the kernel can take the operands of y = a^T.b: there are tokens, rows begin
// at whole pieces, and y's elements come in pairs.
func (b *builder) sumsSuit(y, x, dy device.Operand) bool {
	begin := func(o device.Operand, d graph.DType, bytes uint64) bool {
		return o.DType == d && (uint64(b.base[o.Tier])+uint64(o.Addr))%bytes == 0 && o.Stride*int(d.Size())%int(bytes) == 0
	}
	return x.Rows > 0 && begin(y, graph.F32, 8) && y.Cols%2 == 0 && begin(x, graph.BF16, 16) && begin(dy, graph.BF16, 16)
}

// wgrad starts the kernel.
func (b *builder) wgrad(s sumTile, y, x, dy device.Operand) error {
	a := b.newArgs(y, x, dy)
	piece := x.Rows
	if b.sumRows > 0 {
		piece = min(piece, b.sumRows)
	}
	unit, stageTokens, threads, shared := s.shape()
	steps := blocks(int64(piece), int64(stageTokens))*int64(x.Rows/piece) + blocks(int64(x.Rows%piece), int64(stageTokens))
	a.n = [6]int32{int32(piece), int32(steps)}
	grid := [3]int64{blocks(int64(y.Rows), int64(s.rows)), blocks(int64(y.Cols), int64(s.cols)), 1}
	return b.start(unit, "wgrad", grid, threads, shared, a)
}
