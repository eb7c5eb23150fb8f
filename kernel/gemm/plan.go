package gemm

import "math"

// The loops around the micro-kernel.
//
// C is divided into rectangles, one task each. A task is self-contained, packing included: there are no barriers, and
// cores share no packed data. The price is that two tasks may pack the same part of B; the choice of rectangles
// allows for it. Within a task:
//
//	for each part of k, kc long:                         sums continue in C
//	    pack B[part, columns of the task] into panels    stays in the second-level cache
//	    for each group of rows:                          packed together if A is packed
//	        for as many rows of A as a tile is high:
//	            for each panel: micro-kernel             adds kc products to each sum
//
// Four kinds of shapes differ:
//
//   - TN: the elements of A that a tile needs are spread over many rows of the stored matrix, so A is packed too.
//   - few rows, B stored [K,N] (direct): packing B would cost more than using it. The kernel reads it in place.
//   - few rows, B stored [N,K] (swapped): packing would mean transposing. Instead the operands change roles: elements
//     of B, whose rows are contiguous in k, are broadcast, and A, which is small, is packed. The result is C
//     transposed, in a buffer that stays in cache, so C is transposed instead of B.
//   - up to 8 rows (streamed): B is read once, in strips. See strip.go.
//
// Known weakness: a product with few rows and few columns but a long k runs on few cores, since k is never divided.
type layout struct {
	way            way
	kc             int // units of k in a part
	workerCount    int
	rowTasks, rows int // rows of C are cut in rowTasks parts of at most rows rows
	colTasks, cols int
}

type way uint8

const (
	packed way = iota
	direct
	swapped
	streamed
	tiled // see tiles.go
)

// These limits were found by measurement.
const (
	groupTiles = 8 // tiles in a group

	// kernelWork bounds one call of a micro-kernel, in panels times k: Go cannot preempt it, and garbage collection
	// waits for it. 8192 takes some 30 microseconds.
	kernelWork = 8192
	moveWork   = 1 << 15 // likewise for movers, in elements

	symmetricEdge = 192 // of the squares of a symmetric product: smaller ones would pack more than they save

	smallB       = 1 << 14  // elements of a B that about fits the L1 cache
	fewRows      = 140      // rows of C up to which packing B does not pay
	panelUnits   = 150_000  // units packed in a task: half of an L2 cache of 1 MiB
	widenedUnits = 1024     // units of k in a part if A or B is widened bf16: AVX2's six rows of A then fit the L1 cache
	directUnits  = 64_000   // units of B that a task reads in place
	stageRows    = 1024     // rows of a task that keeps its sums in a buffer, not in C
	aliasStride  = 4 * 1024 // bytes: rows at multiples of this stride map to one set of the L1 cache
)

// plan chooses the way and the rectangles for a number of workers.
func (j *job) plan(workers int) {
	if j.way == tiled {
		j.planTiles(workers)
		return
	}
	var least int // fewest columns to which load balancing may narrow a task
	unit := 2     // parts of k are multiples of it
	wider := !j.pairs && (j.a.half || j.b.half)
	inPlace := !wider && j.b.row != 4 && !j.pairs // B can be read in place
	switch {
	case j.stripKernel() != nil && j.columnStrips():
		j.layout, least, unit = layout{way: streamed, kc: stripUnits, cols: 256}, 64, j.stepUnits()
	case j.stripKernel() != nil:
		j.layout, least = layout{way: streamed, kc: 768, cols: 2048}, 256
	case j.b.row <= 4 && j.m <= fewRows && j.m*(j.k*parts(j.n, 256)+j.n) < j.n*j.k: // fewer elements to transpose
		j.layout, least = layout{way: swapped, kc: 768, cols: 256}, 64
	case inPlace && j.m < 4: // B is read only once, so long rows are best
		j.layout, least = layout{way: direct, kc: 16, cols: 1024}, 256
	case inPlace && j.m <= fewRows:
		// As many sweeps as rows, so that each sweep can prefetch a row of the next part: see prefetchB.
		tiles := parts(j.m, j.kernels.height(j.n, j.isa.nr))
		kc := int(math.Sqrt(float64(directUnits * tiles / j.isa.nr)))
		j.layout, least = layout{way: direct, kc: kc, cols: j.isa.nr * kc / tiles}, 64
	case inPlace && j.k*j.n <= 1<<13: // all of B fits the first-level cache
		j.layout, least = layout{way: direct, kc: 384, cols: 512}, 128
	default:
		j.layout, least = layout{way: packed, kc: 384, cols: 384}, 96
		most := panelUnits / (3 * j.isa.nr)
		if !j.pairs {
			most = min(most, widenedUnits)
		}
		if j.c.half && j.k <= most {
			j.kc, least = most, 64 // one part, so that only final sums are stored
			j.cols = min(384, panelUnits/max(j.k, 1))
		}
	}
	j.workerCount = workers
	j.kc = even(j.k, j.kc, unit)
	j.cols = even(j.n, j.cols, j.isa.nr)
	j.rows = j.m
	if j.way == packed && j.c.half && j.kc < j.k { // the buffer holds the sums of all rows between parts
		j.rows = even(j.m, stageRows, 1)
	}
	j.divide(workers, least, j.kernels.height(j.n, j.isa.nr))
}

// divide shrinks the rectangles until there is work for all workers, but makes none narrower than least; rows are
// divided at multiples of mr. Columns that do not halve into whole panels would give some workers a tenth less work
// than others. Then rows are divided instead if possible; otherwise the number of parts is made a multiple of the
// number of workers.
func (j *job) divide(workers, least, mr int) {
	byRows := j.way == packed || j.way == tiled || j.way == direct && j.m > fewRows // these pack B or have it in cache
	for want := 2 * workers; workers > 1 && parts(j.n, j.cols)*parts(j.m, j.rows) < want; {
		canRows := byRows && j.rows >= 8*mr
		switch {
		case j.cols >= 2*least && !(canRows && (j.cols <= j.rows/2 || j.cols%(2*j.isa.nr) != 0)):
			j.cols = even(j.n, (j.cols+1)/2, j.isa.nr)
		case canRows:
			j.rows = even(j.m, (j.rows+1)/2, mr)
		default:
			want = 0
		}
	}
	j.rowTasks, j.colTasks = parts(j.m, j.rows), parts(j.n, j.cols)
	if j.rowTasks == 1 && j.colTasks > workers {
		j.cols = even(j.n, parts(j.n, parts(j.colTasks, workers)*workers), j.isa.nr)
		j.colTasks = parts(j.n, j.cols)
	}
}

// planSymmetric makes the rectangles of a symmetric product squares, so that the half below the diagonal need not be computed.
// Products whose operands are not packed are small, and stay as they are.
func (j *job) planSymmetric() {
	if j.way != packed && j.way != tiled {
		return
	}
	unit := j.isa.nr
	if j.way == tiled {
		unit = gridRows
	}
	edge := even(j.n, min(j.cols, symmetricEdge), unit)
	j.symmetric, j.rows, j.cols = true, edge, edge
	j.rowTasks, j.colTasks = parts(j.n, edge), parts(j.n, edge)
}

func parts(n, size int) int { return (n + size - 1) / size }

// even returns the size of equal parts of n, in as few parts as the given size needs. All but the last are multiples
// of unit.
func even(n, size, unit int) int {
	size = max(size, 1)
	size = parts(n, max(parts(n, size), 1))
	return max(parts(size, unit)*unit, 1)
}

// block is the rectangle of C that a task computes.
type block struct{ m0, n0, rows, cols int }

// task computes one rectangle.
func (j *job) task(i int, s *Serial) {
	b := block{m0: i / j.colTasks * j.rows, n0: i % j.colTasks * j.cols}
	b.rows, b.cols = min(j.rows, j.m-b.m0), min(j.cols, j.n-b.n0)
	if j.symmetric && b.m0 > b.n0 {
		return
	}
	switch j.way {
	case swapped:
		j.swapped(s, b)
		return
	case streamed:
		j.streamed(s, b)
		return
	case tiled:
		for p := j.first(); !p.done; p = j.next(p) {
			j.addTiles(s, b, p)
		}
		return
	}
	for p := j.first(); !p.done; p = j.next(p) {
		j.add(s, b, p)
	}
}

// part is a part of k. The odd part is the single bf16 that remains where units are pairs.
type part struct {
	k0, kc                 int
	first, last, odd, done bool
}

func (j *job) first() part {
	p := part{kc: min(j.kc, j.k), first: true}
	p.last = p.kc == j.k && !j.odd
	return p
}

func (j *job) next(p part) part {
	k0 := p.k0 + p.kc
	switch {
	case p.last:
		return part{done: true}
	case k0 < j.k:
		kc := min(j.kc, j.k-k0)
		return part{k0: k0, kc: kc, last: k0+kc == j.k && !j.odd}
	}
	return part{k0: j.k, kc: 1, last: true, odd: true}
}

// add adds one part of k to the sums of a rectangle of C, in the packed or the direct way.
func (j *job) add(s *Serial, blk block, p part) {
	x := j.isa
	var b panels
	if j.way == direct {
		src := j.b.from(p.k0, blk.n0)
		b = panels{operand: src, panel: 4 * uintptr(x.nr), tail: s.packTail(&s.tail, src, blk.cols, p.kc)}
	} else {
		b = s.packB(j, j.b.from(p.k0, blk.n0), blk.cols, p)
	}
	h := even(blk.rows, j.kernels.height(blk.cols, x.nr), 1)
	most := j.tilesPerCall(blk.cols, p.kc)
	group := min(max(groupTiles, most)*h, blk.rows)
	for g := 0; g < blk.rows; g += group {
		sub, c, init := j.group(s, blk, p, g, group)
		a := s.packA(j, j.a.from(sub.m0, p.k0), sub.rows, h, p)
		if most > 1 {
			j.several(s, sub, p.kc, h, a, b, c, init)
		}
		for i := 0; i < sub.rows && most <= 1; i += h {
			s.tile = tile{k: p.kc, rows: min(h, sub.rows-i)}
			s.tile.a, s.tile.aRow, s.tile.aCol = a.tile(i, h)
			s.tile.next = a.step(h)
			s.tile.b, s.tile.bRow, s.tile.bPanel = b.p, b.row, b.panel
			s.place(c.from(i, 0), init.from(i, 0))
			if j.packsA() && g+group < blk.rows {
				next := j.a.from(sub.m0+group, p.k0).transposed()
				s.prefetch(next, p.kc, group, j.pairs, i/h, groupTiles, blk.cols)
			} else {
				j.prefetchB(s, blk, p, (g+i)/h, parts(blk.rows, h))
			}
			s.sweep(j.kernels, blk.cols, b.tail)
		}
		if p.last {
			j.finish(s, c, sub)
		}
		j.stepBack()
	}
}

// group returns the rows [g, g+rows) of a rectangle of C, where their sums are while a part of k is added, and where the
// initial values of the sums are.
func (j *job) group(s *Serial, blk block, p part, g, rows int) (sub block, c, init operand) {
	sub = block{blk.m0 + g, blk.n0, min(rows, blk.rows-g), blk.cols}
	row, kept := g, blk.rows
	if p.first && p.last {
		row, kept = 0, rows // no sums are kept between groups
	}
	c = j.target(s, sub, row, kept)
	if p.first {
		return sub, c, j.begin(s, c, sub)
	}
	return sub, c, c
}

// tilesPerCall returns how many tiles a micro-kernel may compute per call: several only if B is so small that
// prefetching is useless.
func (j *job) tilesPerCall(cols, kc int) int {
	if !j.isa.several || j.way != direct || j.n*j.k > smallB || cols%j.isa.nr != 0 {
		return 1
	}
	return kernelWork / max(1, cols/j.isa.nr*kc)
}

// several computes the tiles of a block with as few calls as possible: for small products, the overhead between calls
// exceeded a tenth of the time. Heights differ by at most one, since low tiles are slow.
func (j *job) several(s *Serial, blk block, k, h int, a tiles, b panels, c, init operand) {
	count := parts(blk.rows, h)
	h = parts(blk.rows, count)
	high, width := blk.rows-count*(h-1), blk.cols/j.isa.nr
	for row := 0; row < blk.rows; {
		n := high
		if row > 0 {
			n, h = count-high, h-1
		}
		from := a.from(row, 0)
		s.tile = tile{k: k, rows: h, panels: width, last: 1<<j.isa.nr - 1, more: n - 1, morePanels: width}
		t := &s.tile
		t.a, t.aRow, t.aCol, t.moreA = from.p, a.row, a.col, uintptr(h)*a.row
		t.b, t.bRow, t.bPanel, t.moreB = b.p, b.row, b.panel, -uintptr(width)*b.panel
		s.place(c.from(row, 0), init.from(row, 0))
		t.moreC = uintptr(h)*c.row - uintptr(4*j.isa.nr*width)
		t.moreInit = uintptr(h)*init.row - uintptr(width)*t.initPanel
		t.back = uintptr(4 * j.isa.nr * (width - 1))
		j.kernels.wide[h](t)
		row += n * h
	}
}

// packsA reports whether the elements of A that a tile needs are packed first.
func (j *job) packsA() bool { return j.way == packed && j.a.col != 4 }

// prefetchB makes the n-th of tiles prefetch its share of the next part of B.
func (j *job) prefetchB(s *Serial, blk block, p part, n, tiles int) {
	next := j.b.from(p.k0+p.kc, blk.n0)
	if p.last { // likely the next task of this worker
		next = j.b.from(0, blk.n0+j.cols*j.workerCount)
	}
	if j.b.row <= 4 {
		s.prefetch(next.transposed(), blk.cols, p.kc, false, n, tiles, blk.cols)
	} else {
		s.prefetch(next, p.kc, blk.cols, j.pairs, n, tiles, blk.cols)
	}
}

// prefetch makes the n-th of tiles prefetch its share of a matrix with the given number and length of rows, while it
// sweeps over the columns: one row per panel or, if that does not suffice, one row per step of k and a slice of it
// per panel.
func (s *Serial) prefetch(m operand, rows, length int, pairs bool, n, tiles, cols int) {
	if pairs { // a row of pairs is two rows
		m.row, rows = m.row/2, 2*rows
	}
	t := &s.tile
	panels, kc := parts(cols, s.isa.nr), max(t.k, 1)
	bytes := uintptr(length) * m.col
	if panels*tiles >= rows {
		if first := n * panels; first < rows {
			t.ahead, t.aheadStep, t.aheadPanel = m.from(first, 0).p, bytes/uintptr(kc), m.row
		}
	} else if first := n * kc; first < rows {
		t.ahead, t.aheadStep, t.aheadPanel = m.from(first, 0).p, m.row, bytes/uintptr(panels)
	}
}

// swapped computes a rectangle of C as its transpose: C^T = B^T * A^T.
func (j *job) swapped(s *Serial, blk block) {
	c := j.target(s, blk, 0, blk.rows)
	sums := wide(s.c.room(blk.rows*blk.cols), blk.rows)
	start := nothing()
	if init := j.begin(s, c, blk); init.p != start.p {
		s.transpose(sums, init, blk.rows, blk.cols)
		start = sums
	}
	h := even(blk.cols, j.kernels.height(blk.rows, j.isa.nr), 1)
	for p := j.first(); !p.done; p = j.next(p) {
		a := s.packB(j, j.a.from(blk.m0, p.k0).transposed(), blk.rows, p)
		b := j.b.from(p.k0, blk.n0).transposed()
		for i := 0; i < blk.cols; i += h {
			rows := min(h, blk.cols-i)
			s.tile = tile{k: p.kc, rows: rows}
			s.tile.a, s.tile.aRow, s.tile.aCol = s.packA(j, b.from(i, 0), rows, h, p).tile(0, h)
			s.tile.b, s.tile.bRow, s.tile.bPanel = a.p, a.row, a.panel
			s.place(sums.from(i, 0), start.from(i, 0))
			s.tile.ahead = b.from(i+h, 0).p
			s.tile.aheadStep = b.row * uintptr(h) / uintptr(max(1, parts(blk.rows, j.isa.nr)*p.kc))
			s.tile.aheadPanel = s.tile.aheadStep * uintptr(p.kc)
			s.sweep(j.kernels, blk.rows, 0)
		}
		start = sums
		j.stepBack()
	}
	s.transpose(c, sums, blk.cols, blk.rows)
	j.finish(s, c, blk)
}

// target returns where the sums of a block are kept: in C or, if C is bf16, from the given row on in a buffer of rows
// rows.
func (j *job) target(s *Serial, b block, row, rows int) operand {
	if !j.c.half {
		return j.c.from(b.m0, b.n0)
	}
	return wide(s.stage.room(rows*b.cols), b.cols).from(row, 0)
}

// begin returns the initial values of a block's sums. If they must be computed, it stores them in sums.
func (j *job) begin(s *Serial, sums operand, b block) operand {
	init := j.init.from(b.m0, b.n0)
	if init.half {
		s.widen(sums, init, b.rows, b.cols)
		init = sums
	}
	if j.both {
		j.addBias(s, sums, init, b)
		init = sums
	}
	return init
}

// addBias computes sums = bias + init, as a product with k = 1: 1 * bias + init.
func (j *job) addBias(s *Serial, sums, init operand, b block) {
	bias := j.bias.from(0, b.n0)
	tail := s.packTail(&s.biasTail, bias, b.cols, 1)
	kernels := &j.isa.fma
	h := kernels.height(j.isa.nr, j.isa.nr)
	for i := 0; i < b.rows; i += h {
		s.tile = tile{k: 1, rows: min(h, b.rows-i), a: addressOf(&one), b: bias.p, bPanel: 4 * uintptr(j.isa.nr)}
		s.place(sums.from(i, 0), init.from(i, 0))
		s.sweep(kernels, b.cols, tail)
	}
}

// finish narrows the sums of a block to C if C is bf16. Of a symmetric product it also stores them below the diagonal.
func (j *job) finish(s *Serial, sums operand, b block) {
	if j.c.half {
		s.narrow(j.c.from(b.m0, b.n0), sums, b.rows, b.cols)
	}
	if !j.symmetric || b.m0/j.rows == b.n0/j.cols {
		return
	}
	below := j.c.from(b.n0, b.m0)
	if !j.c.half {
		s.transpose(below, sums, b.rows, b.cols)
		return
	}
	turned := wide(s.below.room(b.rows*b.cols), b.rows)
	s.transpose(turned, sums, b.rows, b.cols)
	s.narrow(below, turned, b.cols, b.rows)
}
