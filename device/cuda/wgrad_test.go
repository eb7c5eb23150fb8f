//go:build linux

package cuda

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestTiles: the gradient of a weight has the same bits in all tiles, in pieces of any length wherever
// calls are cut between them, and is right.
func TestTiles(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	tilesAgree(t, machine, 8)
	tilesAgree(t, machine, 9)
}

// tilesAgree tries the kernel for cards of a compute capability; Hopper's where it can run.
func tilesAgree(t *testing.T, machine maker, major int) {
	t.Helper()
	first := fresh(t)
	d, _ := machine(t, Options{})
	d.chip.major = major
	hopper, tiles := d.chip.hopper(), sumTiles
	if hopper {
		tiles = hopperTiles
	}
	cards := []int{1, 2, 3, 4, 6, 8, 12} // by their SMs: in one of them this shape has that tile
	chosen := func(in, out int, tile sumTile) bool {
		return slices.ContainsFunc(cards, func(sms int) bool {
			s, _, _ := target{sms: sms, hopper: hopper}.sumTile(1, extent{in, out})
			return s == tile
		})
	}
	numbers := make([]int, len(tiles))
	for i := range numbers {
		numbers[i] = i
	}
	for _, i := range casesOf(numbers, 1) {
		tile, seed := tiles[i], first+uint64(i)
		s := sumSample(seed)
		piece, in, out := 1+s.IntN(70), 0, 0
		for in == 0 || !chosen(in, out, tile) {
			if in, out = 1+s.IntN(320), 2*(1+s.IntN(160)); seed%2 == 0 {
				in, out = (in+7)&^7, (out+7)&^7
			}
		}
		n := piece*s.IntN(4) + 1 + s.IntN(piece)
		s.sums(in, out, n)
		want := s.reference()
		s.poison()
		var parts []device.Call
		for r0 := 0; r0 < n; {
			rows := min(piece*(1+s.IntN(2)), n-r0)
			parts = append(parts, s.cut(r0, rows))
			r0 += rows
		}
		used := map[sumTile][]byte{}
		for _, sms := range cards {
			d, _ := machine(t, Options{SumRows: piece}, imageBytes)
			d.chip.sms, d.chip.major = sms, major
			tile, _, _ := target{sms: sms, hopper: hopper}.sumTile(n, extent{in, out})
			if used[tile] != nil {
				continue
			}
			whole := execute(t, d, s.call, s.image)
			if err := s.check(bytes.Clone(whole), bytes.Clone(want)); err != nil {
				t.Errorf("seed %d: %v in %+v: %v", seed, s, tile, err)
			}
			if !bytes.Equal(whole, executeAll(t, d, parts, s.image)) {
				t.Errorf("seed %d: %v in %+v: in %d parts of pieces of %d the bits differ", seed, s, tile, len(parts), piece)
			}
			used[tile] = whole
		}
		for tile, image := range used {
			for other := range used {
				if !bytes.Equal(image, used[other]) {
					t.Errorf("seed %d: %v: %+v and %+v differ", seed, s, tile, other)
				}
			}
		}
	}
}

func sumSample(seed uint64) *sample {
	return &sample{Rand: rand.New(rand.NewPCG(seed, 17)), image: make([]byte, imageBytes), wide: true, float: graph.BF16, tol: 8e-3}
}

// sums makes the sample the gradient of a weight of in x out over n tokens.
func (s *sample) sums(in, out, n int) {
	s.call = device.Call{Op: graph.LinearDW, Attr: graph.Attr{Acc: s.IntN(2) == 0}}
	s.acc = s.call.Attr.Acc
	s.gradient(in, out, n)
}

// gradient adds the operands of one gradient.
func (s *sample) gradient(in, out, n int) {
	for _, x := range []device.Operand{{DType: graph.F32, Rows: in, Cols: out}, {DType: graph.BF16, Rows: n, Cols: in}, {DType: graph.BF16, Rows: n, Cols: out}} {
		o := s.place(x.DType, x.Rows, (x.Cols+7)&^7) // rows of a vocabulary's logits are longer than it; behind it is no number
		o.Cols = x.Cols
		s.call.Args[len(s.call.Args)-1] = o
		all := tensor(s.image, o)
		for r := range o.Rows {
			for c := range o.Cols {
				all.Set(r, c, s.NormFloat64())
			}
		}
	}
}

// TestTilesEdges: gradients that are smaller than a tile or end just after one, over few tokens.
func TestTilesEdges(t *testing.T) {
	testkit.Needs(t, testkit.All)
	tilesReach(t, machine)
}

func tilesReach(t *testing.T, machine maker) {
	seed := fresh(t)
	for _, major := range []int{8, 9} {
		for _, shape := range [][3]int{{1, 2, 1}, {1, 258, 65}, {193, 2, 63}, {7, 6, 129}, {65, 98, 64}, {129, 130, 33}, {8, 8, 130}, {136, 264, 130}} {
			s := sumSample(seed)
			s.sums(shape[0], shape[1], shape[2])
			want := s.reference()
			s.poison()
			d, _ := machine(t, Options{SumRows: 64}, imageBytes)
			d.chip.major = major
			if err := s.check(execute(t, d, s.call, s.image), want); err != nil {
				t.Errorf("seed %d: %v, compute capability %d: %v", seed, s, major, err)
			}
		}
	}
}

// TestOwnSums: who sums the gradient of a weight. Where instructions are the same, our kernel does
// unless sequences are very long; where the library's are faster, the library does unless they are
// short; on Hopper, as measured. Without a library, and where it need not cut, there is no choice.
func TestOwnSums(t *testing.T) {
	for _, c := range []struct {
		t    target
		m, n int
		own  bool
	}{
		{target{library: true, sms: 108, major: 8, sumRows: 1024}, 768, 3072, true},
		{target{library: true, sms: 128, major: 8, sumRows: 2048}, 4096, 14336, true},
		{target{library: true, sms: 170, major: 12, sumRows: 1024}, 2048, 8192, true},
		{target{library: true, sms: 108, major: 8, sumRows: 32768}, 4096, 14336, false},
		{target{library: true, sms: 132, major: 9, hopper: true, sumRows: 1024}, 768, 3072, true},
		{target{library: true, sms: 132, major: 9, hopper: true, sumRows: 1024}, 4096, 14336, true},
		{target{library: true, sms: 132, major: 9, hopper: true, sumRows: 1024}, 768, 768, true},
		{target{library: true, sms: 132, major: 9, hopper: true, sumRows: 4096}, 768, 768, false},
		{target{library: true, sms: 132, major: 9, hopper: true, sumRows: 4096}, 768, 3072, true},
		{target{library: true, sms: 132, major: 9, hopper: true, sumRows: 4096}, 512, 2048, false},
		{target{library: true, sms: 132, major: 9, hopper: true, sumRows: 4096}, 2048, 2048, true},
		{target{library: true, sms: 132, major: 9, hopper: true, sumRows: 4096}, 8192, 2048, true},
		{target{library: true, sms: 132, major: 9, sumRows: 256}, 768, 3072, true},
		{target{library: true, sms: 132, major: 9, sumRows: 2048}, 4096, 14336, false},
		{target{library: true, sms: 148, major: 10, sumRows: 1024}, 4096, 14336, false},
		{target{library: true, sms: 108, major: 8}, 768, 3072, false},
		{target{library: true, major: 8, sumRows: 1024}, 768, 3072, false},
		{target{sms: 108, major: 8}, 768, 3072, true},
		{target{}, 64, 64, true},
	} {
		if own := c.t.ownSums(c.m, c.n); own != c.own {
			t.Errorf("%+v: %d x %d: own %v", c.t, c.m, c.n, own)
		}
	}
}

// TestFastestTiles: the tiles are those that were fastest on an H200.
func TestFastestTiles(t *testing.T) {
	for shape, want := range map[[2]int][2]int{{768, 768}: {64, 128}, {512, 2048}: {64, 128}, {768, 2304}: {128, 128}, {768, 3072}: {128, 192},
		{3072, 768}: {128, 192}, {2048, 2048}: {128, 256}, {8192, 2048}: {128, 256}} {
		if tile, _, _ := (target{sms: 132, major: 9, hopper: true}).sumTile(16384, extent{shape[0], shape[1]}); tile.rows != want[0] || tile.cols != want[1] {
			t.Errorf("%d x %d: %+v, want %v", shape[0], shape[1], tile, want)
		}
	}
}

// TestTilesFit: a block of every tile can run on the cards that the tile is for.
func TestTilesFit(t *testing.T) {
	for most, tiles := range map[int][]sumTile{leastShared: sumTiles, 227 << 10: hopperTiles} {
		for _, s := range tiles {
			if unit, _, threads, shared := s.shape(); shared > most || threads > 1024 {
				t.Errorf("%v has %d threads and %d bytes of shared memory, of %d", unit, threads, shared, most)
			}
		}
	}
}

// TestSumRows: sequences are cut into equal parts, none of which is short.
func TestSumRows(t *testing.T) {
	for seq := 1; seq < 40000; seq += 7 {
		if n := SumRows(seq); seq%n != 0 || n < min(seq, 4096) {
			t.Errorf("%d tokens are cut at %d", seq, n)
		}
	}
	for seq, want := range map[int]int{1024: 1024, 4096: 4096, 8192: 4096, 12288: 4096, 10000: 5000, 131072: 4096, 16411: 16411} {
		if n := SumRows(seq); n != want {
			t.Errorf("%d tokens are cut at %d, want %d", seq, n, want)
		}
	}
}

// TestSumsSuit: operands whose rows do not begin at multiples of 16 bytes, or that are in fp32, go to
// the other kernels.
func TestSumsSuit(t *testing.T) {
	op := func(d graph.DType, rows, cols, stride int, addr int64) device.Operand {
		return device.Operand{DType: d, Addr: addr, Rows: rows, Cols: cols, Stride: stride}
	}
	y, x, dy := op(graph.F32, 64, 96, 96, 0), op(graph.BF16, 40, 64, 72, 1<<20), op(graph.BF16, 40, 96, 96, 2<<20)
	for _, c := range []struct {
		y, x, dy device.Operand
		file     string
	}{
		{y, x, dy, "wgrad_mma"},
		{op(graph.BF16, 64, 96, 96, 0), x, dy, "product"},
		{op(graph.F32, 64, 96, 97, 0), x, dy, "product"},
		{y, op(graph.F32, 40, 64, 64, 1<<20), dy, "product"},
		{y, op(graph.BF16, 40, 64, 68, 1<<20), dy, "product"},
		{y, op(graph.BF16, 40, 64, 64, 1<<20+8), dy, "product"},
		{op(graph.F32, 64, 95, 96, 0), x, op(graph.BF16, 40, 95, 96, 2<<20), "product"},
		{op(graph.F32, 63, 94, 96, 0), op(graph.BF16, 40, 63, 72, 1<<20), op(graph.BF16, 40, 94, 96, 2<<20), "wgrad_mma"},
	} {
		call := device.Call{Op: graph.LinearDW, Args: []device.Operand{c.y, c.x, c.dy}}
		works, err := target{}.build(&call)
		if err != nil || len(works) != 1 || works[0].launch.unit.File != c.file {
			t.Errorf("%v: %v, want %s", call.Args, units(works), c.file)
		}
	}
}

func units(list []work) (out []kernels.Unit) {
	for _, w := range list {
		out = append(out, w.launch.unit)
	}
	return out
}
