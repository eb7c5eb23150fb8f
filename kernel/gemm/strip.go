package gemm

// Products of few rows.
//
// With one row of A each element of B is used once, so memory bandwidth limits the speed. B is read in strips of 16
// of its stored rows, 64 bytes of each row per step. Each step prefetches the same bytes of the next strip, or, where
// its rows are adjacent, as many bytes in the order of addresses, in which memory is read faster (by 6 % on Zen 5). So
// rows may be short, and no strip begins with a stall, not even that of the worker's next task.
//
//   - B stored [K,N]: a strip is 16 steps of k. Each sum is loaded from C, extended by 16 products and stored again;
//     a task's part of a row of C stays in the L1 cache.
//   - B stored [N,K]: a strip is 16 columns of C, whose sums stay in registers. Blocks of 16x16 are transposed in
//     registers.
//
// If there are several rows, their sums are kept in panels of 16 columns, and A is transposed. A bf16 B that is
// not multiplied in pairs is widened in registers; A, which is small, is widened beforehand.
//
// Known weakness: other methods must compute products with more rows than the highest kernel (8 with AVX-512, 4 with
// NEON, 1 with AVX2) or with a k that does not fill strips, and the last columns that do not fill a panel.

// strip is the argument of the kernels for few rows; strides in bytes. From strip to strip, a advances by aPanel, b
// by bPanel, c by cPanel. A step reads 64 bytes of each of 16 rows of B, and prefetches those that lie ahead bytes
// further.
//
// The generator knows the layout.
type strip struct {
	a, aPanel       address // units of A; those of all rows of a column are contiguous
	b, bRow, bPanel address
	c, cPanel       address // panels of 16 columns; the rows of a panel are contiguous
	steps, strips   int
	ahead           uintptr
	adjacent        uintptr // not 0 if there are no gaps between rows of B
	levels, scales  address // for weights in 4 bits: 16 levels; the scales of the strips' rows, block by block
}

const (
	stripRows  = 16   // stored rows of B in a strip
	stripBytes = 64   // bytes of each row per step
	stripWork  = 400  // steps per call, which cannot be preempted: some 15 microseconds
	stripUnits = 2048 // units of k in a part where k runs along the strips, so that two strips fit half of an L2 cache
)

// stripKernel returns the kernel for few rows and this form of B, or nil if none can compute the product.
func (j *job) stripKernel() func(*strip) {
	columns, rows := j.kernels.columns, j.kernels.rows
	if j.widensB() {
		columns, rows = j.isa.halfColumns, j.isa.halfRows
	}
	kernels, unit := rows, j.stripUnits()
	if j.columnStrips() {
		kernels, unit = columns, j.stepUnits()
	}
	if j.form.transposedA() || j.m >= len(kernels) || j.k == 0 || j.k%unit != 0 || j.odd {
		return nil
	}
	return kernels[j.m]
}

// columnStrips reports whether strips are columns of B.
func (j *job) columnStrips() bool { return j.b.row <= 4 }

// widensB reports whether B is bf16 and its elements are multiplied one by one.
func (j *job) widensB() bool { return j.b.half && !j.pairs }

// stepUnits returns the number of units in the bytes of a row of B that a step reads.
func (j *job) stepUnits() int {
	if j.widensB() {
		return stripBytes / 2
	}
	return stripBytes / 4
}

// stripUnits returns the number of units of k in a strip of rows of B.
func (j *job) stripUnits() int {
	if j.pairs {
		return stripRows / 2
	}
	return stripRows
}

// streamed computes a part of C with few rows in strips. Last columns that do not fill a panel are computed
// in another way.
func (j *job) streamed(s *Serial, blk block) {
	panel := stripRows
	if j.b.half && !j.columnStrips() {
		panel = stripBytes / 2
	}
	full, rest := blk, blk
	rest.cols = blk.cols % panel
	full.cols -= rest.cols
	rest.n0 += full.cols
	switch {
	case rest.cols == 0:
	case j.columnStrips():
		j.swapped(s, rest)
	default:
		for p := j.first(); !p.done; p = j.next(p) {
			j.add(s, rest, p)
		}
	}
	if full.cols == 0 {
		return
	}
	c := j.target(s, full, 0, full.rows)
	init := j.begin(s, c, full)
	sums := c.p
	if full.rows > 1 {
		sums = s.sums.room(full.rows * full.cols)
	}
	d := deal{rows: full.rows, panels: full.cols / stripRows, width: stripRows, fill: stripRows}
	if init.p != sums {
		in := d
		in.srcPanel, in.dstRow, in.dstPanel = stripRows*init.col, stripBytes, stripBytes*uintptr(full.rows)
		s.deal(in, sums, init)
	}
	switch {
	case j.four.Rows != nil:
		j.walkPacked(s, full, sums)
	case j.columnStrips():
		j.walkColumns(s, full, sums)
	default:
		j.walkRows(s, full, sums)
	}
	if full.rows > 1 {
		out := d
		out.srcPanel, out.dstRow, out.dstPanel = stripBytes*uintptr(full.rows), c.row, stripBytes
		s.deal(out, c.p, operand{p: sums, row: stripBytes})
	}
	j.finish(s, c, full)
}

// walkRows adds all products to the sums of a part of C, in strips of rows of B.
func (j *job) walkRows(s *Serial, blk block, sums address) {
	b := j.b.from(0, blk.n0)
	row := b.row
	if j.pairs {
		row /= 2
	}
	s.strip = strip{a: j.elements(s), aPanel: uintptr(j.stripUnits()) * j.unitBytes(), b: b.p, bRow: row, bPanel: stripRows * row, c: sums}
	s.strip.steps = blk.cols * int(b.col) / stripBytes
	j.strips(s, j.k/j.stripUnits(), j.after(blk))
}

// walkColumns adds all products to the sums of a part of C, in strips of columns of B.
func (j *job) walkColumns(s *Serial, blk block, sums address) {
	a := j.elements(s)
	for k := 0; k < j.k; k += j.kc {
		kc := min(j.kc, j.k-k)
		next := j.after(blk)
		if k+kc < j.k {
			next = j.b.from(k+kc, blk.n0)
		}
		b := j.b.from(k, blk.n0)
		s.strip = strip{a: at(a, k, j.unitBytes()), b: b.p, bRow: b.col, bPanel: stripRows * b.col, c: sums, cPanel: stripBytes * uintptr(j.m)}
		s.strip.steps = kc / j.stepUnits()
		if b.col == uintptr(s.strip.steps)*stripBytes {
			s.strip.adjacent = 1
		}
		j.strips(s, blk.cols/stripRows, next)
	}
}

// elements returns the address of A transposed. A single row needs no transposition.
func (j *job) elements(s *Serial) address {
	rows := j.a
	if rows.half && !j.pairs {
		rows = wide(s.wideA.room(j.m*j.k), j.k)
		s.widen(rows, j.a, j.m, j.k)
	}
	if j.m == 1 {
		return rows.p
	}
	a := wide(s.a.room(j.m*j.k), j.m)
	s.transpose(a, rows, j.m, j.k)
	return a.p
}

// unitBytes returns the size of a column of A in bytes.
func (j *job) unitBytes() uintptr { return 4 * uintptr(j.m) }

// after returns the part of B that this worker will likely need after blk.
func (j *job) after(blk block) operand {
	return j.b.from(0, min(blk.n0+j.cols*j.workerCount, j.n))
}

// strips runs a kernel over n strips, from s.strip on, in calls of bounded length. The last strip prefetches next.
func (j *job) strips(s *Serial, n int, next operand) {
	kernel := j.stripKernel()
	most := max(1, stripWork/s.strip.steps)
	s.strip.ahead = s.strip.bPanel
	for n--; n > 0; {
		s.strip.strips = min(n, most)
		n -= s.strip.strips
		kernel(&s.strip)
		j.stepBack()
	}
	s.strip.strips, s.strip.ahead = 1, next.p-s.strip.b
	kernel(&s.strip)
}
