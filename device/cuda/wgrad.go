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
// cards, and uses the SMs better where a gradient is small.
//
// The choice determines bits, so it depends only on the card (and whether the compiler
// supports all its instructions), the matrix and the sequence length. The tile does not
// affect bits and is chosen for speed alone. For example, a gradient of 768 x 3072 on the 132 SMs of an
// H200 is 96 tiles of 128 x 192: one wave of them costs less than two of the 144 of 128 x 128, and 600
// TFLOP/s were measured against 351 (544 and 560 in later runs). The library's way reached 389 in
// sequences of 1024. Where tiles would not fill the SMs of a Hopper evenly, blocks continue each
// other's sums (relay.go), and two gradients of a layer share a launch (paired).
//
// Measured on an H200, in TFLOP/s, ours and the library's way in sequences of 1024 and 4096 tokens
// (more, and an experiment with all tiles that gave the rates below, in docs/measurements/gpu.md):
//
//	              ours   1024   4096
//	 768 x  768    224    159
//	 768 x 3072    560    395
//	1600 x 6400    751    399
//	2048 x 2048    730           546
//	8192 x 2048    796           738
//
// Known weakness: rates of other cards than Hopper's are counted or published, not measured.
// TestRateSums, which tools/gpu-check.sh runs, compares both ways.

// sumTile is a block of kernels/wgrad_mma.cu with its number of warps, or of
// wgrad_wgmma.cu, and the fraction of its instructions' peak rate that it reaches
// with one block per SM.
type sumTile struct {
	rows, cols   int
	down, across int // warps; 0: groups of four on Hopper
	rate         float64
}

var (
	sumTiles = []sumTile{{128, 256, 2, 4, 0.9}, {128, 160, 2, 2, 0.85}, {128, 128, 2, 2, 0.8}, {64, 128, 2, 2, 0.65}}
	// Of 8.1 TFLOP/s, 2048 multiply-adds in each of 1.98e9 clocks. 192 x 256, in three groups of
	// warps, reached 0.75 and thus won nowhere: it makes too few tiles of most gradients, and 603 TFLOP/s
	// of 8192 x 2048 where 128 x 256 makes 766.
	hopperTiles = []sumTile{{128, 256, 0, 0, 0.8}, {128, 192, 0, 0, 0.77}, {128, 128, 0, 0, 0.57}, {64, 128, 0, 0, 0.36}}
)

// shape returns how the kernels are started: stageTokens is their DEEP, and the bytes of shared memory
// are STAGES places, in wgrad_mma.cu with gaps after rows, in wgrad_wgmma.cu as many as fit, at most 8.
func (s sumTile) shape() (unit kernels.Unit, stageTokens, threads, shared int) {
	suffix, defines, threads := s.variant()
	unit = kernels.Unit{File: "wgrad" + suffix, Defines: defines}
	if s.down == 0 {
		const most = 227 << 10
		fit := (most - s.places(0)) / (s.places(1) - s.places(0))
		return unit, 64, threads, s.places(min(fit, 8))
	}
	return unit, 32, threads, 2 * 3 * 32 * (s.rows + 8 + s.cols + 8)
}

// places returns the shared memory for n places of 64 tokens on Hopper, which begin at the next
// multiple of 1024.
func (s sumTile) places(n int) int { return 1024 + n*2*64*(s.rows+s.cols) }

// variant returns the suffix of the names of the tile's kernels, its definitions and its threads.
func (s sumTile) variant() (suffix, defines string, threads int) {
	defines = fmt.Sprintf("ROWS=%d COLS=%d", s.rows, s.cols)
	if s.down == 0 {
		return "_wgmma", defines, 2 * s.rows
	}
	return "_mma", fmt.Sprintf("%s DOWN=%d ACROSS=%d", defines, s.down, s.across), 32 * s.down * s.across
}

// extent is a gradient's rows and columns.
type extent struct{ rows, cols int }

// number returns how many tiles the gradients have.
func (s sumTile) number(list ...extent) (n int64) {
	for _, y := range list {
		n += blocks(int64(y.rows), int64(s.rows)) * blocks(int64(y.cols), int64(s.cols))
	}
	return n
}

// fetching is the time in which Hopper's second-level cache delivers an element of an operand to an SM,
// in multiply-adds: some 34 bytes a clock, as measured.
const fetching = 120

// waves returns the time of a number of tiles, one after another on each SM. On Hopper the full rate is
// so high that the second-level cache is a bound too.
func (s sumTile) waves(tiles int64, sms int) float64 {
	sms = max(sms, 1)
	t := float64(blocks(tiles, int64(sms))) * float64(s.rows*s.cols) / s.rate
	if s.down == 0 {
		t = max(t, float64(tiles)*float64(s.rows+s.cols)*fetching/float64(sms))
	}
	return t
}

// Costs of a library product besides the multiplication.
const (
	// rewriting is the time to read and write the fp32 result, in tokens multiplied
	// meanwhile: one multiply-add per element and token, over 8 bytes per element.
	// A100, 4090: 530 to 700; H200: 640 measured.
	rewriting = 600
	// Start and end, in multiply-adds of one SM: some 2 us, and 5 us on Hopper, as measured.
	beginning       = 4e6
	hopperBeginning = 2e7
)

// librarysRate is the fraction of the peak at which the library multiplies on Hopper, whatever the
// shape: 770 TFLOP/s of an H200, whose power allows 825 at most.
const librarysRate = 0.72

// ownRate returns our kernel's instruction rate relative to the library's, which is assumed to have the
// same tiles, except on Hopper. The instructions are the same, older, or much older.
func (t target) ownRate() float64 {
	switch {
	case t.major == 9:
		return 0.6
	case t.major == 10 || t.major == 11:
		return 0.25
	}
	return 0.9
}

// usual is the number of tokens assumed when choosing who sums; with more there is no difference.
const usual = 16384

// sumTile returns the fastest tile for gradients over this many tokens, how the tiles are divided, and
// the time per token.
func (t target) sumTile(tokens int, list ...extent) (tile sumTile, way relay, time float64) {
	tiles := sumTiles
	if t.hopper {
		tiles = hopperTiles
	}
	for i, s := range tiles {
		if r, x := t.divide(s, s.number(list...), tokens); i == 0 || x < time {
			tile, way, time = s, r, x
		}
	}
	return tile, way, time
}

// ownSums reports whether our kernel sums the gradient of an m x n weight. On an unknown card the
// library does, if present.
func (t target) ownSums(m, n int) bool {
	if !t.library || t.sumRows < 1 || t.sms < 1 {
		return !t.library
	}
	_, _, ours := t.sumTile(usual, extent{m, n})
	even := float64(m) * float64(n) / float64(t.sms)
	theirs, begin := even/librarysRate, hopperBeginning
	if !t.hopper {
		tile, _, _ := t.sumTile(usual, extent{m, n})
		ours, theirs, begin = ours/t.ownRate(), tile.waves(tile.number(extent{m, n}), t.sms), beginning
	}
	return ours < theirs+(even*rewriting+begin)/float64(t.sumRows)
}

// sumsSuit reports whether the kernel can take the operands of y = a^T.b: there are
// tokens, rows start at whole pieces, and y's elements come in pairs.
func (b *builder) sumsSuit(y, x, dy device.Operand) bool {
	return x.Rows > 0 && b.begins(y, graph.F32, 8) && y.Cols%2 == 0 && b.begins(x, graph.BF16, 16) && b.begins(dy, graph.BF16, 16)
}

// begins reports whether an operand has type d, and its rows begin at multiples of this many bytes.
func (b *builder) begins(o device.Operand, d graph.DType, bytes uint64) bool {
	return o.DType == d && (uint64(b.base[o.Tier])+uint64(o.Addr))%bytes == 0 && o.Stride*int(d.Size())%int(bytes) == 0
}

// gradient is y = x^T.dy, or x^T.dy added to it.
type gradient struct{ y, x, dy device.Operand }

func (g gradient) extent() extent { return extent{g.y.Rows, g.y.Cols} }

// own reports whether our kernel sums a gradient.
func (b *builder) own(g gradient) bool {
	return b.ownSums(g.y.Rows, g.y.Cols) && b.sumsSuit(g.y, g.x, g.dy)
}

// paired reports whether two gradients are summed by one launch: on Hopper, where that fills SMs better.
func (b *builder) paired(first, second gradient) bool {
	return b.hopper && b.own(first) && b.own(second) && b.sharesLaunch(first.x.Rows, first.extent(), second.extent())
}

// sharesLaunch reports whether one launch for two gradients takes less time than one for each.
func (t target) sharesLaunch(tokens int, first, second extent) bool {
	_, _, both := t.sumTile(tokens, first, second)
	_, _, one := t.sumTile(tokens, first)
	_, _, other := t.sumTile(tokens, second)
	return both < worthwhile*(one+other)
}

// wgrad launches the kernel for a gradient, or for two on Hopper.
func (b *builder) wgrad(list ...gradient) error {
	var ops []device.Operand
	var extents []extent
	for _, g := range list {
		ops, extents = append(ops, g.y, g.x, g.dy), append(extents, g.extent())
	}
	a, tokens := b.newArgs(ops...), list[0].x.Rows
	piece := tokens
	if b.sumRows > 0 {
		piece = min(piece, b.sumRows)
	}
	s, way, _ := b.sumTile(tokens, extents...)
	unit, stageTokens, threads, shared := s.shape()
	steps := blocks(int64(piece), int64(stageTokens))*int64(tokens/piece) + blocks(int64(tokens%piece), int64(stageTokens))
	down, across := blocks(int64(list[0].y.Rows), int64(s.rows)), blocks(int64(list[0].y.Cols), int64(s.cols))
	grid := [3]int64{down, across, 1}
	if s.down == 0 {
		grid = [3]int64{way.groups * way.roles, 1, 1}
		a.scratch = uint64(b.flags)
	}
	if len(list) > 1 {
		unit.Defines += " PAIR=1"
	}
	a.n = [8]int32{int32(piece), int32(steps), int32(way.groups), int32(blocks(way.tiles*steps, way.roles)), int32(way.tiles)}
	for i, y := range extents {
		a.n[5+i] = int32(s.band(y, way.groups, b.sms))
	}
	return b.start(unit, "wgrad", grid, threads, shared, a)
}
