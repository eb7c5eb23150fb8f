package gemm

// place points the tile at its part of C and at what the sums begin with.
func (s *Serial) place(c, init operand) {
	t := &s.tile
	t.c, t.cRow = c.p, c.row
	t.init, t.initRow, t.initPanel = init.p, init.row, init.col*uintptr(s.isa.nr)
	t.ahead = addressOf(&zeros[0])
}

// sweep runs the tile over n columns of C: whole panels in as long calls as allowed, then the last one if it is
// narrower, whose part of B is at tail unless that is 0.
func (s *Serial) sweep(n int, tail address) {
	t, x := &s.tile, s.isa
	kernel := x.kernels[min(t.rows, len(x.kernels)-1)]
	for full := n / x.nr; full > 0; {
		t.panels = min(full, max(1, kernelWork/max(t.k, 1)))
		t.last = 1<<x.nr - 1
		full -= t.panels
		kernel(t)
	}
	rest := n % x.nr
	if rest == 0 {
		return
	}
	if tail != 0 {
		t.b, t.bRow = tail, 4*uintptr(x.nr)
	}
	if rest <= x.nr/2 {
		kernel = x.narrow[t.rows]
	}
	t.panels, t.last = 1, 1<<rest-1
	kernel(t)
}

// packB packs k rows and n columns of b into panels of nr columns, the last one filled up with zeros.
func (s *Serial) packB(b operand, n, k int) {
	x := s.isa
	panel := 4 * k * x.nr
	dst := s.b.room(parts(n, x.nr) * k * x.nr)
	if b.row == 4 {
		for j := 0; j < n; j += x.nr {
			s.packPanel(b.from(0, j), at(dst, j/x.nr*panel, 1), min(x.nr, n-j), k)
		}
		return
	}
	full := n / x.nr
	s.deal(dst, uintptr(4*x.nr), uintptr(panel), b, uintptr(4*x.nr), k, full, x.nr, x.nr)
	if rest := n % x.nr; rest > 0 {
		s.deal(at(dst, full*panel, 1), uintptr(4*x.nr), 0, b.from(0, full*x.nr), 0, k, 1, rest, x.nr)
	}
}

// packPanel transposes n columns of b, each contiguous in k, into one panel.
func (s *Serial) packPanel(b operand, dst address, n, k int) {
	x := s.isa
	row := uintptr(4 * x.nr)
	for r := 0; r < x.nr; r += x.strip {
		for k0 := 0; k0 < k; k0 += moveWork / x.strip {
			if r >= n { // nothing but the filling
				s.move = move{src: addressOf(&zeros[0]), dst: at(at(dst, 4*r, 1), k0, row), dstRow: row,
					rows: min(moveWork/x.strip, k-k0), cols: 1, mask: 1<<(32+x.strip) - 1<<32}
				x.deal(&s.move)
				continue
			}
			s.move = move{src: b.from(k0, r).p, srcRow: b.col, dst: at(at(dst, 4*r, 1), k0, row), dstRow: row,
				rows: min(x.strip, n-r), cols: min(moveWork/x.strip, k-k0), mask: 1<<x.strip - 1}
			x.transpose(&s.move)
		}
	}
}

// packTail packs the last columns of b that do not fill a panel, and returns where they are or 0 if there are none.
func (s *Serial) packTail(b operand, n, k int) address {
	x := s.isa
	rest := n % x.nr
	if rest == 0 {
		return 0
	}
	dst := s.tail.room(k * x.nr)
	s.deal(dst, uintptr(4*x.nr), 0, b.from(0, n-rest), 0, k, 1, rest, x.nr)
	return dst
}

// packA packs rows of a transposed A, h at a time, k long each.
func (s *Serial) packA(a operand, rows, h, k int) {
	dst := s.a.room(parts(rows, h) * h * k)
	full := rows / h
	row, panel := uintptr(4*h), uintptr(4*h*k)
	src := a.transposed()
	s.deal(dst, row, panel, src, row, k, full, h, h)
	if rest := rows % h; rest > 0 {
		s.deal(at(dst, full, panel), row, 0, src.from(0, full*h), 0, k, 1, rest, rest)
	}
}

// copyA copies rows of A to where they don't fall on the same lines of the cache.
func (s *Serial) copyA(a operand, rows, k int) operand {
	const width = 32
	stride := parts(k, 16)*16 + 16
	dst := operand{s.a.room(rows * stride), uintptr(4 * stride), 4}
	s.deal(dst.p, dst.row, 4*width, a, 4*width, rows, k/width, width, width)
	if rest := k % width; rest > 0 {
		s.deal(dst.p+uintptr(4*(k-rest)), dst.row, 0, a.from(0, k-rest), 0, rows, 1, rest, rest)
	}
	return dst
}

// deal copies panels of width elements out of the rows of src, in calls of bounded length; fill elements are written.
func (s *Serial) deal(dst address, dstRow, dstPanel uintptr, src operand, srcPanel uintptr, rows, panels, width, fill int) {
	if panels == 0 || rows == 0 {
		return
	}
	step := max(1, moveWork/(panels*fill))
	for r := 0; r < rows; r += step {
		s.move = move{src: src.from(r, 0).p, srcRow: src.row, srcPanel: srcPanel, dst: at(dst, r, dstRow), dstRow: dstRow,
			dstPanel: dstPanel, rows: min(step, rows-r), cols: panels, mask: 1<<width - 1 | (1<<fill-1)<<32}
		s.isa.deal(&s.move)
	}
}

// transpose writes dst[r][c] = src[c][r] for all r < rows, c < cols of dst; src may repeat one row.
func (s *Serial) transpose(dst, src operand, srcRows, srcCols int) {
	x := s.isa
	for r := 0; r < srcRows; r += x.strip {
		n := min(x.strip, srcRows-r)
		s.move = move{src: src.from(r, 0).p, srcRow: src.row, dst: dst.from(0, r).p, dstRow: dst.row,
			rows: n, cols: srcCols, mask: 1<<n - 1}
		x.transpose(&s.move)
	}
}
