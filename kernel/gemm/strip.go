package gemm

// Products of few rows.
//
// With one row of A each element of B is used once, so memory sets the time: what counts is that it is kept busy. B is
// walked along strips of 16 of its stored rows, 64 bytes of each row per step, and each step has the same places of the
// next strip fetched into the second-level cache. So rows may be short, and no strip begins with waiting, that of the
// worker's next task included.
//
//   - B stored [K,N]: a strip is 16 steps of k. Each sum is taken from C, goes on for 16 products, and is put back; a
//     task's part of a row of C stays in the first-level cache.
//   - B stored [N,K]: a strip is 16 columns of C, whose sums are in registers. Blocks of 16x16 are transposed in
//     registers on their way.
//
// The sums of several rows lie together in panels of 16 columns meanwhile, and A lies column by column.
//
// Known weakness: what does not fill a strip is left to others: rows of C beyond the kernels' greatest height, a k that is
// not a multiple of 16, the last columns.

// strip is the argument of the kernels for few rows; strides in bytes. a moves on by aPanel from strip to strip, b by
// bPanel, c by cPanel. A step takes 64 bytes of 16 rows of B, and prefetches those that are ahead bytes further.
//
// The generator knows the layout.
type strip struct {
	a, aPanel       address // units, those of all rows of A together
	b, bRow, bPanel address
	c, cPanel       address // panels of 16 columns, those of all rows together
	steps, strips   int
	ahead           uintptr
}

const (
	stripRows  = 16   // stored rows of B
	stripBytes = 64   // of each in a step
	stripWork  = 400  // steps in a call, which cannot be preempted: some 15 microseconds
	stripUnits = 2048 // of k in a part where k lies along the strips, so that two strips fit half of a second-level cache
)

// stripKernel returns the kernel for few rows and this form of B, or nil if none can compute the product.
func (j *job) stripKernel() func(*strip) {
	kernels, unit := j.kernels.rows, j.stripUnits()
	if j.columnStrips() {
		kernels, unit = j.kernels.columns, stripRows
	}
	if j.form.turned() || j.m >= len(kernels) || j.k == 0 || uintptr(j.k)%unit != 0 || j.odd || j.a.half != j.pairs || j.b.half != j.pairs {
		return nil
	}
	return kernels[j.m]
}

// columnStrips tells whether strips are columns of B.
func (j *job) columnStrips() bool { return j.b.row == 4 }

// stripUnits returns the units of k in a strip of rows of B.
func (j *job) stripUnits() uintptr {
	if j.pairs {
		return stripRows / 2
	}
	return stripRows
}

// streamed computes a part of few rows of C in strips, but for the last columns if they do not fill a panel.
func (j *job) streamed(s *Serial, blk block) {
	panel := stripRows
	if j.pairs && !j.columnStrips() {
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
	if j.columnStrips() {
		j.walkColumns(s, full, sums)
	} else {
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
	s.strip = strip{a: j.elements(s), aPanel: j.stripUnits() * j.unitBytes(), b: b.p, bRow: row, bPanel: stripRows * row, c: sums}
	s.strip.steps = blk.cols * int(b.col) / stripBytes
	j.strips(s, j.k/int(j.stripUnits()), j.after(blk))
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
		s.strip.steps = kc / stripRows
		j.strips(s, blk.cols/stripRows, next)
	}
}

// elements returns where A lies column by column: one row does.
func (j *job) elements(s *Serial) address {
	if j.m == 1 {
		return j.a.p
	}
	a := wide(s.a.room(j.m*j.k), j.m)
	s.transpose(a, j.a, j.m, j.k)
	return a.p
}

// unitBytes is the size of a column of A.
func (j *job) unitBytes() uintptr { return 4 * uintptr(j.m) }

// after returns what of B this worker will likely need after a part of C.
func (j *job) after(blk block) operand {
	return j.b.from(0, min(blk.n0+j.cols*j.workerCount, j.n))
}

// strips runs a kernel over n strips, from s.strip on, in calls of bounded length. After them comes next.
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
