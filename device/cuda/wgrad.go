package cuda

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// Weight gradients are sums over tokens, and law L1 requires the same bits however
// tokens are cut into micro-batches. The library does not document its order of
// summation, so it gets them sequence by sequence, and each product reads and writes
// the whole fp32 gradient: 8 bytes of traffic per element and sequence. At 1024 tokens
// that costs more than half as long as the multiplication, on most cards.
// kernels/wgrad_mma.cu, and on Hopper wgrad_wgmma.cu, process all tokens at once, since
// they respect the cuts. But the library has faster instructions on Blackwell's large
// cards, and cheaper copies on Hopper.
//
// The choice determines bits, so it depends only on the card (and whether the compiler
// supports all its instructions), the matrix and the sequence length. The tile does not
// affect bits and is chosen for speed alone. For example, a gradient of 768 x 3072 on
// the 108 SMs of an A100 is 72 tiles of 128 x 256: one wave of them costs less than two
// of the 144 of 128 x 128. With sequences of 1024 the library would take 1.3 times as
// long.
//
// Known weakness: the rates below are counted or published, not measured. TestRateSums,
// which tools/gpu-check.sh runs, compares both ways.

// sumTile is a block of kernels/wgrad_mma.cu with its number of warps, or of
// wgrad_wgmma.cu, and the fraction of its instructions' peak rate that it can reach
// with one block per SM.
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
	suffix, defines, threads := s.variant()
	unit = kernels.Unit{File: "wgrad" + suffix, Defines: defines}
	if s.down == 0 {
		return unit, 64, threads, 1024 + 2*4*64*(s.rows+s.cols)
	}
	return unit, 32, threads, 2 * 3 * 32 * (s.rows + 8 + s.cols + 8)
}

// variant returns what the names of the tile's kernels end with, its definitions and its threads.
func (s sumTile) variant() (suffix, defines string, threads int) {
	defines = fmt.Sprintf("ROWS=%d COLS=%d", s.rows, s.cols)
	if s.down == 0 {
		return "_wgmma", defines, 2 * s.rows
	}
	return "_mma", fmt.Sprintf("%s DOWN=%d ACROSS=%d", defines, s.down, s.across), 32 * s.down * s.across
}

// time returns the time per token in units of one SM's multiply-adds at full rate.
func (s sumTile) time(m, n, sms int) float64 {
	return s.waves(blocks(int64(m), int64(s.rows))*blocks(int64(n), int64(s.cols)), sms)
}

// waves returns the time of so many tiles, one after another on each SM. On Hopper
// the full rate is so high that the second-level cache is a bound too: it delivers
// some 32 bytes a clock to all SMs together, one element of an operand in the time of
// 128 multiply-adds.
func (s sumTile) waves(tiles int64, sms int) float64 {
	const fetching = 128
	sms = max(sms, 1)
	t := float64(blocks(tiles, int64(sms))) * float64(s.rows*s.cols) / s.rate
	if s.down == 0 {
		t = max(t, float64(tiles)*float64(s.rows+s.cols)*fetching/float64(sms))
	}
	return t
}

// Costs of a library product besides multiplying. The multiplication is assumed to use
// the same tiles at the full rate, with the same cache bound as ours.
const (
	// rewriting is the time to read and write the fp32 result, in tokens multiplied
	// meanwhile: one multiply-add per element and token, over 8 bytes per element.
	// A100, H200, 4090: 530 to 700.
	rewriting = 600
	beginning = 4e6 // start and end, in multiply-adds of one SM: some 2 us
)

// ownRate returns our kernel's instruction rate relative to the library's. The
// instructions are the same, fed by threads instead of bulk copies, older, or much
// older.
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

// ownSums reports whether our kernel sums the gradient of an m x n weight, and in which
// tiles. On an unknown card the library does, if present.
func (t target) ownSums(m, n int) (tile sumTile, own bool) {
	tiles := sumTiles
	if t.hopper {
		tiles = hopperTiles
	}
	for i, s := range tiles {
		if i == 0 || s.time(m, n, t.sms) < tile.time(m, n, t.sms) {
			tile = s
		}
	}
	if !t.library || t.sumRows < 1 || t.sms < 1 {
		return tile, !t.library
	}
	multiply, besides := tile.time(m, n, t.sms), (float64(m)*float64(n)/float64(t.sms)*rewriting+beginning)/float64(t.sumRows)
	return tile, multiply/t.ownRate() < multiply+besides
}

// sumsSuit reports whether the kernel can take the operands of y = a^T.b: there are
// tokens, rows start at whole pieces, and y's elements come in pairs.
func (b *builder) sumsSuit(y, x, dy device.Operand) bool {
	return x.Rows > 0 && b.begins(y, graph.F32, 8) && y.Cols%2 == 0 && b.begins(x, graph.BF16, 16) && b.begins(dy, graph.BF16, 16)
}

// begins reports whether an operand has the type, and its rows begin at multiples of so many bytes.
func (b *builder) begins(o device.Operand, d graph.DType, bytes uint64) bool {
	return o.DType == d && (uint64(b.base[o.Tier])+uint64(o.Addr))%bytes == 0 && o.Stride*int(d.Size())%int(bytes) == 0
}

// wgrad launches the kernel.
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
