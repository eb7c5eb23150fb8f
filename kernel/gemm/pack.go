package gemm

// place points the tile at its part of C and at the initial values.
func (s *Serial) place(c, init operand) {
	t := &s.tile
	t.c, t.cRow = c.p, c.row
	t.init, t.initRow, t.initPanel = init.p, init.row, init.col*uintptr(s.isa.nr)
	t.ahead = addressOf(&zeros[0])
}

// sweep runs the tile over n columns of C: whole panels in calls as long as allowed, then a narrower last panel,
// whose part of B is at tail unless tail is 0.
func (s *Serial) sweep(kernels *family, n int, tail address) {
	t, nr := &s.tile, s.isa.nr
	full := n / nr
	for full > 0 {
		t.panels = min(full, max(1, kernelWork/max(t.k, 1)))
		t.last = 1<<nr - 1
		full -= t.panels
		t.back = uintptr(4 * nr * (n/nr - full - 1))
		kernels.wide[t.rows](t)
	}
	rest := n % nr
	if rest == 0 {
		return
	}
	if tail != 0 {
		t.b, t.bRow = tail, 4*uintptr(nr)
	}
	t.panels, t.last, t.back = 1, 1<<rest-1, uintptr(4*(n-rest))
	if rest <= nr/2 {
		kernels.narrow[t.rows](t)
	} else {
		kernels.wide[t.rows](t)
	}
}

// panels is B as the kernels read it: rows of nr contiguous units, with strides between rows and panels.
type panels struct {
	operand
	panel uintptr
	tail  address // the last panel if it lies elsewhere, else 0
}

// packB packs n columns of a part of b into panels, padding the last one.
func (s *Serial) packB(j *job, b operand, n int, p part) panels {
	x := s.isa
	row := 4 * uintptr(x.nr)
	dst := s.b.room(parts(n, x.nr) * p.kc * x.nr)
	to := panels{operand: operand{p: dst, row: row}, panel: row * uintptr(p.kc)}
	if b.half && !j.pairs {
		if b.row == 2 {
			rows := wide(s.wideB.room(n*p.kc), p.kc)
			s.widen(rows, b.transposed(), n, p.kc)
			b = rows.transposed()
		} else {
			for i := 0; i < n; i += x.nr {
				s.widen(wide(at(dst, i/x.nr, to.panel), x.nr), b.from(0, i), p.kc, min(x.nr, n-i))
			}
			return to
		}
	}
	switch {
	case p.odd:
		for i := range n {
			*(*uint32)(pointer(at(dst, i, 4))) = uint32(*(*uint16)(pointer(b.from(0, i).p)))
		}
	case b.row == 4:
		for i := 0; i < n; i += x.nr {
			s.packPanel(b.from(0, i), at(dst, i/x.nr, to.panel), min(x.nr, n-i), p.kc)
		}
	default:
		full := n / x.nr
		d := deal{rows: p.kc, srcPanel: b.col * uintptr(x.nr), dstRow: row, dstPanel: to.panel, fill: x.nr, pairs: j.pairs}
		s.deal(d.of(full, x.nr), dst, b)
		if rest := n % x.nr; rest > 0 {
			s.deal(d.of(1, rest), at(dst, full, to.panel), b.from(0, full*x.nr))
		}
	}
	return to
}

// packPanel transposes n columns of b, each contiguous in k, into one panel.
func (s *Serial) packPanel(b operand, dst address, n, k int) {
	x := s.isa
	row := uintptr(4 * x.nr)
	step := moveWork / x.strip
	for r := 0; r < n; r += x.strip {
		for k0 := 0; k0 < k; k0 += step {
			s.move = move{src: b.from(k0, r).p, srcRow: b.col, dst: at(dst+uintptr(4*r), k0, row), dstRow: row,
				rows: min(x.strip, n-r), cols: min(step, k-k0), mask: 1<<x.strip - 1}
			x.transpose(&s.move)
		}
	}
}

// packTail packs the last columns of b that do not fill a panel into buf. It returns their address, or 0 if there are
// none.
func (s *Serial) packTail(buf *buffer, b operand, n, k int) address {
	x := s.isa
	rest := n % x.nr
	if rest == 0 {
		return 0
	}
	dst := buf.room(k * x.nr)
	d := deal{rows: k, dstRow: 4 * uintptr(x.nr), fill: x.nr}
	s.deal(d.of(1, rest), dst, b.from(0, n-rest))
	return dst
}

// tiles is A as the kernels read it: the strides inside a tile, and the stride between tiles, or 0 if it is height
// rows.
type tiles struct {
	operand
	panel uintptr
}

// tile returns the address and strides of the tile at row i, a multiple of the height.
func (t tiles) tile(i, height int) (p address, row, col uintptr) {
	return at(t.p, i/height, t.step(height)), t.row, t.col
}

// step returns the distance from tile to tile.
func (t tiles) step(height int) uintptr {
	if t.panel != 0 {
		return t.panel
	}
	return uintptr(height) * t.row
}

// packA prepares rows of a part of a for tiles of height h, in place if possible.
func (s *Serial) packA(j *job, a operand, rows, h int, p part) tiles {
	switch {
	case p.odd:
		dst := s.a.room(rows)
		for i := range rows {
			*(*uint32)(pointer(at(dst, i, 4))) = uint32(*(*uint16)(pointer(a.from(i, 0).p)))
		}
		return tiles{operand: operand{p: dst, row: 4}}
	case a.half && !j.pairs && a.col == 2:
		dst := wide(s.wideA.room(rows*p.kc), p.kc)
		s.widen(dst, a, rows, p.kc)
		return tiles{operand: dst}
	case a.half && !j.pairs:
		dst := wide(s.wideA.room(rows*p.kc), rows)
		s.widen(dst, a.transposed(), p.kc, rows)
		a = dst.transposed()
	case a.col == 4 && a.row%aliasStride == 0 && j.way != direct:
		return tiles{operand: s.copyA(a, rows, p.kc)}
	case a.col == 4 || j.way == direct:
		return tiles{operand: a}
	}
	dst := s.a.room(parts(rows, h) * h * p.kc)
	to := tiles{operand: operand{p: dst, row: 4, col: 4 * uintptr(h)}, panel: uintptr(4 * h * p.kc)}
	src, full := a.transposed(), rows/h
	d := deal{rows: p.kc, srcPanel: src.col * uintptr(h), dstRow: to.col, dstPanel: to.panel, pairs: j.pairs}
	s.deal(d.of(full, h), dst, src)
	if rest := rows % h; rest > 0 {
		s.deal(d.of(1, rest), at(dst, full, to.panel), src.from(0, full*h))
	}
	return to
}

// copyA copies rows of A with a stride that avoids conflicts in one cache set.
func (s *Serial) copyA(a operand, rows, k int) operand {
	width := s.isa.nr
	stride := parts(k, 16)*16 + 16
	dst := wide(s.a.room(rows*stride), stride)
	d := deal{rows: rows, srcPanel: 4 * uintptr(width), dstRow: dst.row, dstPanel: 4 * uintptr(width)}
	s.deal(d.of(k/width, width), dst.p, a)
	if rest := k % width; rest > 0 {
		s.deal(d.of(1, rest), dst.from(0, k-rest).p, a.from(0, k-rest))
	}
	return dst
}

// deal describes how rows are split into panels.
type deal struct {
	rows                       int
	srcPanel, dstRow, dstPanel uintptr
	panels, width              int
	fill                       int  // width to pad to
	pairs                      bool // rows of the destination consist of pairs
}

// of returns d for the given number of panels and width.
func (d deal) of(panels, width int) deal {
	d.panels, d.width, d.fill = panels, width, max(d.fill, width)
	return d
}

// deal splits the rows of src into panels, in calls of bounded length.
func (s *Serial) deal(d deal, dst address, src operand) {
	if d.panels == 0 {
		return
	}
	mover := s.isa.deal
	if d.pairs {
		mover = s.isa.zip
	}
	step := max(1, moveWork/(d.panels*d.fill))
	for r := 0; r < d.rows; r += step {
		s.move = move{src: src.from(r, 0).p, srcRow: src.row, srcPanel: d.srcPanel, dst: at(dst, r, d.dstRow), dstRow: d.dstRow,
			dstPanel: d.dstPanel, rows: min(step, d.rows-r), cols: d.panels, mask: 1<<d.width - 1 | (1<<d.fill-1)<<32}
		mover(&s.move)
	}
}

// transpose writes dst[c][r] = src[r][c]. The row stride of src may be 0.
func (s *Serial) transpose(dst, src operand, rows, cols int) {
	x := s.isa
	for r := 0; r < rows; r += x.strip {
		n := min(x.strip, rows-r)
		s.move = move{src: src.from(r, 0).p, srcRow: src.row, dst: dst.from(0, r).p, dstRow: dst.row,
			rows: n, cols: cols, mask: 1<<n - 1}
		x.transpose(&s.move)
	}
}

// widen converts rows from bf16 to fp32.
func (s *Serial) widen(dst, src operand, rows, cols int) {
	s.inCalls(s.isa.widen, dst, src, rows, cols)
}

// narrow converts rows from fp32 to bf16.
func (s *Serial) narrow(dst, src operand, rows, cols int) {
	s.inCalls(s.isa.narrow, dst, src, rows, cols)
}

// inCalls converts in calls of bounded length.
func (s *Serial) inCalls(mover func(*convert), dst, src operand, rows, cols int) {
	step := max(1, moveWork/max(cols, 1))
	for r := 0; r < rows; r += step {
		s.convert = convert{src: src.from(r, 0).p, srcRow: src.row, dst: dst.from(r, 0).p, dstRow: dst.row,
			rows: min(step, rows-r), cols: cols}
		mover(&s.convert)
	}
}
