package gemm

// Products on tile registers (AMX). C is computed in squares of 32 x 32, as 2 x 2 tiles of fp32. Each instruction
// adds the products of 16 rows, 16 columns and 32 steps of k in 16 cycles; vectors need 512 multiply-adds and 256
// cycles for them. So the speed depends on supplying the operands.
//
//	for each part of k:
//	    pack B[part, columns of the task] into panels      32 wide, in pairs; second-level cache
//	    for each 32 rows of A:
//	        for each step of the part:
//	            pack A[rows, step]                         first-level cache
//	            for each panel: kernel                     sums continue in C
//
// Both operands are packed for all shapes, with k padded with zeros to a multiple of 32. So every sum is computed in
// the same way wherever it lies, and no two rows of a block conflict in a cache set. The tile configuration describes
// the edges of C.
//
// Example: 40 x 70 x 100 has 4 blocks of k; 32 + 8 rows, the latter in one tile of 8 rows; panels 32, 32 and 6 wide.
//
// If A is stored [K,M], its pairs are packed like those of B and then transposed.
//
// Known weakness: products reach a third of the instruction's peak rate; the rest is waiting for the L2 cache. With
// few rows, packing B costs more than the products. TN is excluded, since its k may be cut at any even place (TNB
// promises more).

// grid is the argument of a kernel on tiles: for each panel, C = init + A * B, up to 32 x 32. Strides are in bytes.
//
// The generator knows the layout.
type grid struct {
	config tileConfig

	a         address // blocks of 32 of k: 2 tiles of 16 rows
	b, bPanel address // panels of blocks of 16 pairs x 32 columns

	init               address // initial values of the sums; strides may be 0
	initRow, initPanel uintptr

	c    address
	cRow uintptr

	blocks, panels int
}

// tileConfig is the operand of LDTILECFG: per tile register, bytes per row and number of rows.
type tileConfig struct {
	palette  uint8
	_        [15]uint8 // the row to start at, after an interruption, and reserved bytes
	rowBytes [16]uint16
	rows     [16]uint8
}

// Sizes of tiles, and limits found by measurement. A pair is two steps of k.
const (
	tileRows   = 16
	gridRows   = 2 * tileRows // and columns
	blockPairs = 16

	tileStep  = 12 * blockPairs // pairs of k in a step: 24 KiB of A
	tilePart  = 256             // pairs of k in a part
	tileWhole = 384             // pairs of k up to which there is one part, so that C is written only once
	tileCols  = 1024
	tileUnits = 1 << 18 // pairs packed in a task: half of an L2 cache of 2 MiB

	turnedRows = 4 * gridRows // rows of A that are packed together, since they share cache lines
)

// configure returns the tile configuration for a square of C of the given size.
func configure(rows, cols int) tileConfig {
	t := tileConfig{palette: 1}
	for i := range 2 {
		height, width := clamp(rows-i*tileRows), 4*uint16(clamp(cols-i*tileRows))
		t.rows[4+i], t.rowBytes[4+i] = height, 4*blockPairs // A
		t.rows[6+i], t.rowBytes[6+i] = blockPairs, width    // B
		for j := range 2 {
			t.rows[2*i+j], t.rowBytes[i+2*j] = height, width
		}
	}
	for i := range 8 { // absent tiles have neither rows nor bytes
		if t.rows[i] == 0 || t.rowBytes[i] == 0 {
			t.rows[i], t.rowBytes[i] = 0, 0
		}
	}
	return t
}

// clamp limits n rows or columns to the range of one tile.
func clamp(n int) uint8 { return uint8(min(max(n, 0), tileRows)) }

// planTiles chooses the rectangles.
func (j *job) planTiles(workers int) {
	kc := even(j.k, tilePart, blockPairs)
	if j.k <= tileWhole {
		kc = max(j.k, 1)
	}
	j.layout = layout{way: tiled, kc: kc, workerCount: workers, rows: j.m}
	j.cols = even(j.n, min(tileCols, max(gridRows, tileUnits/kc)), gridRows)
	if j.c.half && kc < j.k {
		j.rows = even(j.m, stageRows, gridRows)
	}
	j.divide(workers, 2*gridRows, gridRows)
}

// addTiles adds one part of k to the sums of a rectangle of C.
func (j *job) addTiles(s *Serial, blk block, p part) {
	b, bPanel := s.packPairs(&s.b, j, j.b.from(p.k0, blk.n0), blk.cols, p)
	var turned, turnedPanel address
	for g := 0; g < blk.rows; g += gridRows {
		sub, c, init := j.group(s, blk, p, g, gridRows)
		step := even(p.kc, tileStep, blockPairs)
		for k := 0; k < p.kc; k += step {
			n := min(step, p.kc-k)
			var a address
			if j.form.transposedA() {
				if k == 0 && g%turnedRows == 0 {
					turned, turnedPanel = s.packPairs(&s.c, j, j.a.from(sub.m0, p.k0).transposed(), min(turnedRows, blk.rows-g), p)
				}
				a = s.turnSquares(at(turned, g%turnedRows/gridRows, turnedPanel)+uintptr(4*gridRows*k), n)
			} else {
				a = s.packSquares(j.a.from(sub.m0, p.k0+k), sub.rows, n, j.ragged && p.last && k+n == p.kc)
			}
			s.grid = grid{a: a, b: b + uintptr(4*gridRows*k), bPanel: bPanel, blocks: parts(n, blockPairs),
				init: init.p, initRow: init.row, initPanel: gridRows * init.col, c: c.p, cRow: c.row}
			s.sweepGrid(j.isa, sub.rows, sub.cols)
			init = c
		}
		if p.last {
			j.finish(s, c, sub)
		}
		j.stepBack()
	}
}

// sweepGrid runs the grid over n columns of C: whole panels, then a narrower one.
func (s *Serial) sweepGrid(x *isa, rows, n int) {
	t, tall := &s.grid, parts(rows, tileRows)
	if t.panels = n / gridRows; t.panels > 0 {
		t.config = configure(rows, gridRows)
		x.tiles[tall-1][1](t)
	}
	if rest := n % gridRows; rest > 0 {
		full := n / gridRows
		t.b, t.init, t.c = at(t.b, full, t.bPanel), at(t.init, full, t.initPanel), at(t.c, full, 4*gridRows)
		t.config, t.panels = configure(rows, rest), 1
		x.tiles[tall-1][parts(rest, tileRows)-1](t)
	}
}

// packPairs packs n columns of a part of b into panels of pairs in a buffer, padded to whole blocks. It returns their
// address and stride.
func (s *Serial) packPairs(room *buffer, j *job, b operand, n int, p part) (dst address, panel uintptr) {
	const row = 4 * gridRows
	whole, filled := p.kc, parts(p.kc, blockPairs)*blockPairs
	if j.ragged && p.last {
		whole--
	}
	dst, panel = room.room(parts(n, gridRows)*filled*gridRows), uintptr(row*filled)
	switch {
	case whole == 0:
	case b.row == 4:
		for i := 0; i < n; i += gridRows {
			s.packPanel(b.from(0, i), at(dst, i/gridRows, panel), min(gridRows, n-i), whole)
		}
	default:
		full := n / gridRows
		d := deal{rows: whole, srcPanel: b.col * gridRows, dstRow: row, dstPanel: panel, fill: gridRows, pairs: true}
		s.deal(d.of(full, gridRows), dst, b)
		if rest := n % gridRows; rest > 0 {
			s.deal(d.of(1, rest), at(dst, full, panel), b.from(0, full*gridRows))
		}
	}
	for i := range n {
		column := at(dst, i/gridRows, panel) + uintptr(4*(i%gridRows))
		for k := whole; k < filled; k++ {
			*(*uint32)(pointer(at(column, k, row))) = 0
		}
		if whole < p.kc {
			*(*uint32)(pointer(at(column, whole, row))) = uint32(*half(b.from(whole, i).p, 0))
		}
	}
	return dst, panel
}

// packSquares packs n pairs of each row of a into blocks of 16 pairs, padded. If ragged, the last pair has one
// element.
func (s *Serial) packSquares(a operand, rows, n int, ragged bool) address {
	const row, panel = 4 * blockPairs, 4 * blockPairs * gridRows
	dst := s.a.room(gridRows * parts(n, blockPairs) * blockPairs)
	whole := n
	if ragged {
		whole--
	}
	full, rest := whole/blockPairs, whole%blockPairs
	d := deal{rows: rows, srcPanel: row, dstRow: row, dstPanel: panel, fill: blockPairs}
	s.deal(d.of(full, blockPairs), dst, a)
	if rest == 0 && !ragged {
		return dst
	}
	last := at(dst, full, panel)
	s.deal(d.of(1, rest), last, a.from(0, full*blockPairs))
	if ragged {
		for i := range rows {
			*(*uint32)(pointer(at(last, i, row) + uintptr(4*rest))) = uint32(*half(a.from(i, whole).p, 0))
		}
	}
	return dst
}

// turnSquares packs n pairs into the same blocks, 32 rows high, from the output of packPairs.
func (s *Serial) turnSquares(pairs address, n int) address {
	const row = 4 * gridRows
	dst := s.a.room(gridRows * parts(n, blockPairs) * blockPairs)
	for k := 0; k < n; k += blockPairs {
		s.move = move{src: at(pairs, k, row), srcRow: row, dst: at(dst, k, row), dstRow: 4 * blockPairs,
			rows: blockPairs, cols: gridRows, mask: 1<<blockPairs - 1}
		s.isa.transpose(&s.move)
	}
	return dst
}
