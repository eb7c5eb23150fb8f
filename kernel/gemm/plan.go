package gemm

// The loops around the micro-kernel.
//
// C is divided into rectangles, one task each. A task is complete in itself, packing included: there is no barrier and
// no packed data travels between cores, and the price, that two tasks may pack the same part of B, is counted when the
// rectangles are chosen. Within a task:
//
//	for each part of k, kc long:                        sums continue in C
//	    pack B[part, columns of the task] into panels   stays in the second-level cache
//	    for each group of rows of A, as high as a tile: stays in the first-level cache
//	        for each panel: micro-kernel
//
// Three kinds of shapes differ:
//
//   - TN: the elements of A that a tile needs lie across many rows of the stored matrix, so A is packed too.
//   - few rows, B stored [K,N] (direct): packing B would cost more than using it. The kernel reads it where it lies,
//     in short parts of k so that whole rows of B stream by.
//   - few rows, B stored [N,K] (swapped): packing would mean transposing. Instead the operands change roles: B, whose
//     rows are contiguous in k, is the one that is broadcast, and A, which is small, is packed. That gives C transposed,
//     in a buffer that stays in cache, and costs one transposition of C instead of one of B.
//
// Known weakness: a product with few rows and few columns but a long k runs on few cores, since k is never divided.
type layout struct {
	way            way
	kc             int
	rowTasks, rows int // rows of C are cut in rowTasks parts of at most rows rows
	colTasks, cols int
}

type way uint8

const (
	packed way = iota
	direct
	swapped
)

// The cuts for each way of working, found by measuring. A task's packed panels (kc x cols) fill half of a second-level
// cache of 1 MiB.
const (
	groupRows = 8 // tiles of A packed at a time

	// kernelWork bounds the length of one call of a micro-kernel, in panels times k: Go cannot preempt it, and
	// collecting garbage waits for it. 8192 is some 30 microseconds.
	kernelWork = 8192
	moveWork   = 1 << 15 // likewise for movers, in elements

	fewRows     = 140      // up to which packing B does not pay
	aliasStride = 4 * 1024 // rows at multiples of this many bytes meet in one set of the first-level cache
)

// plan chooses the way and the rectangles for a number of workers.
func (j *job) plan(workers int) {
	var least int // columns below which a task is not divided for the sake of an even load
	switch {
	case j.form == NT && j.m <= fewRows:
		j.layout, least = layout{way: swapped, kc: 768, cols: 256}, 64
	case j.form == NT || j.m > fewRows && j.k*j.n > 1<<13:
		j.layout, least = layout{way: packed, kc: 384, cols: 384}, 96
	case j.m < 4: // B is used up as it streams by: long rows
		j.layout, least = layout{way: direct, kc: 16, cols: 1024}, 256
	default:
		j.layout, least = layout{way: direct, kc: 128, cols: 512}, 128
	}
	j.kc = even(j.k, j.kc, 2)
	j.cols = even(j.n, j.cols, j.isa.nr)
	j.rows = j.m
	mr := len(j.isa.kernels) - 1
	for want := 2 * workers; workers > 1 && parts(j.n, j.cols)*parts(j.m, j.rows) < want; {
		switch {
		case j.cols >= 2*least && (j.way != packed || j.cols > j.rows/2):
			j.cols = even(j.n, (j.cols+1)/2, j.isa.nr)
		case j.way == packed && j.rows >= 8*mr:
			j.rows = even(j.m, (j.rows+1)/2, mr)
		default:
			want = 0
		}
	}
	j.rowTasks, j.colTasks = parts(j.m, j.rows), parts(j.n, j.cols)
}

func parts(n, size int) int { return (n + size - 1) / size }

// even returns the size of the parts of n when it is cut into as few parts as parts of the given size, all multiples
// of unit but for the last.
func even(n, size, unit int) int {
	size = max(size, 1)
	size = parts(n, max(parts(n, size), 1))
	return max(parts(size, unit)*unit, 1)
}

// task computes one rectangle.
func (j *job) task(i int, s *Serial) {
	m0, n0 := i/j.colTasks*j.rows, i%j.colTasks*j.cols
	m1, n1 := min(m0+j.rows, j.m), min(n0+j.cols, j.n)
	init := j.init.from(m0, n0)
	c := j.c.from(m0, n0)
	if j.both {
		j.addBias(s, c, init, m1-m0, n0, n1)
		init = c
	}
	if j.way == swapped {
		j.swapped(s, c, init, m0, m1, n0, n1)
		return
	}
	for k0 := 0; k0 == 0 || k0 < j.k; k0 += j.kc {
		j.part(s, c, init, m0, m1, n0, n1, k0, min(k0+j.kc, j.k))
		init = c
	}
}

// addBias computes C = bias + init on a rectangle, as a product with k = 1: 1 * bias + init.
func (j *job) addBias(s *Serial, c, init operand, rows, n0, n1 int) {
	bias := j.bias.from(0, n0)
	tail := s.packTail(bias, n1-n0, 1)
	h := len(j.isa.kernels) - 1
	for i := 0; i < rows; i += h {
		s.tile = tile{k: 1, rows: min(h, rows-i), a: addressOf(&one)}
		s.place(c.from(i, 0), init.from(i, 0))
		s.tile.b, s.tile.bPanel = bias.p, 4*uintptr(j.isa.nr)
		s.sweep(n1-n0, tail)
	}
}

// part adds the products of k0 to k1 to a rectangle of C, in the packed or the direct way.
func (j *job) part(s *Serial, c, init operand, m0, m1, n0, n1, k0, k1 int) {
	x, kc := j.isa, k1-k0
	b := j.b.from(k0, n0)
	panel := 4 * uintptr(x.nr)
	var tail address // 0: none
	if j.way == direct {
		tail = s.packTail(b, n1-n0, kc)
	} else {
		s.packB(b, n1-n0, kc)
		b = operand{s.b.room(0), panel, 0}
		panel *= uintptr(kc)
	}
	mr := len(x.kernels) - 1
	if (n1 - n0) <= x.nr/2 {
		mr = len(x.narrow) - 1
	}
	h := even(m1-m0, mr, 1)
	group := groupRows * h
	packA := j.form == TN && j.way == packed
	copyA := !packA && j.way == packed && j.a.row%aliasStride == 0
	for i := m0; i < m1; i++ {
		a := j.a.from(i, k0)
		if packA {
			if (i-m0)%group == 0 {
				s.packA(a, min(group, m1-i), h, kc)
			}
			a = operand{at(s.a.room(0), (i-m0)%group*kc, 4), 4, uintptr(h) * 4}
		}
		if copyA {
			a = s.copyA(a, min(h, m1-i), kc)
		}
		s.tile = tile{k: kc, rows: min(h, m1-i), a: a.p, aRow: a.row, aCol: a.col, b: b.p, bRow: b.row, bPanel: panel}
		s.place(c.from(i-m0, 0), init.from(i-m0, 0))
		if j.way == direct && i == m0 {
			s.tile.ahead, s.tile.aheadStep, s.tile.aheadPanel = b.from(kc, 0).p, b.row, panel
		}
		s.sweep(n1-n0, tail)
		i += h - 1
	}
}

// swapped computes a rectangle of C by way of its transpose: C^T = B^T * A^T.
func (j *job) swapped(s *Serial, c, init operand, m0, m1, n0, n1 int) {
	x, rows, cols := j.isa, m1-m0, n1-n0
	ct := operand{s.c.room(rows * cols), uintptr(rows) * 4, 4}
	start := nothing()
	if init.p != start.p {
		s.transpose(ct, init, rows, cols)
		start = ct
	}
	mr := len(x.kernels) - 1
	if rows <= x.nr/2 {
		mr = len(x.narrow) - 1
	}
	h := even(cols, mr, 1)
	for k0 := 0; k0 == 0 || k0 < j.k; k0 += j.kc {
		kc := min(j.kc, j.k-k0)
		s.packB(j.a.from(m0, k0).transposed(), rows, kc)
		b := j.b.from(k0, n0).transposed()
		for i := 0; i < cols; i += h {
			bi := b.from(i, 0)
			s.tile = tile{k: kc, rows: min(h, cols-i), a: bi.p, aRow: bi.row, aCol: bi.col,
				b: s.b.room(0), bRow: 4 * uintptr(x.nr), bPanel: 4 * uintptr(x.nr*kc)}
			s.place(ct.from(i, 0), start.from(i, 0))
			s.tile.ahead = b.from(i+h, 0).p
			s.tile.aheadStep = b.row * uintptr(h) / uintptr(max(1, parts(rows, x.nr)*kc))
			s.tile.aheadPanel = s.tile.aheadStep * uintptr(kc)
			s.sweep(rows, 0)
		}
		start = ct
	}
	s.transpose(c, ct, cols, rows)
}
