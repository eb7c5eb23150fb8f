package gemm

import "unsafe"

// Packed is a matrix [N,K] in 4 bits, stored row by row: the indices of K elements, two in a byte, the first one in
// its lower half, then a scale in fp32 for every PackedBlock of them. An element is its level times its scale, none
// of which is subnormal; in a product with bf16 it is rounded to bf16.
type Packed struct {
	Rows   []byte
	Stride int // in bytes
	Levels *[16]float32
}

const (
	PackedBlock = 64            // how many elements have a scale
	PackedUnit  = 2 * stripRows // how many rows are multiplied at a time
)

// Packed computes C[M,N] = init + A * B^T with the bits of Gemm, reading the indices once, and reports whether it
// has: it is made for few rows of A and whole blocks and units of B, and not for all processors. If not, C is as it
// was.
//
// A step of the kernel transposes a block's indices of 16 rows of B, twice, so that sums are lanes, and looks their
// levels up in a register.
func (s *Serial) Packed(m, n, k int, a Matrix, b Packed, c Matrix, init Init) bool {
	j := &s.job
	j.isa, j.form, j.way, j.m, j.n, j.k = s.isa, NT, streamed, m, n, k
	j.kernels, j.pairs, j.odd, j.ragged = &s.isa.fma, false, false, false
	j.a, j.b = a.operand("A", m, k), operand{}
	if j.a.half {
		j.kernels, j.pairs, j.k = &s.isa.dot, true, k/2
		j.a.col *= 2
	}
	if !s.isa.multipliesPacked(m, k, j.a.half) || n < 1 || n%PackedUnit != 0 {
		return false
	}
	if (len(b.Rows)-k/2-k/PackedBlock*4)/b.Stride < n-1 {
		panic("gemm: packed rows are too short")
	}
	j.setSums(m, n, c, init)
	j.held[0], j.four = a, b
	j.streamed(s, block{rows: m, cols: n})
	j.release()
	return true
}

// MultipliesPacked reports whether Serial.Packed is made for so many rows and columns of A, in bf16 or not.
func (e *Engine) MultipliesPacked(m, k int, half bool) bool {
	return e.isa.multipliesPacked(m, k, half)
}

func (x *isa) multipliesPacked(m, k int, half bool) bool {
	kernels := x.fma.packed
	if half {
		kernels = x.dot.packed
	}
	tiles := half && x.tiles[0][0] != nil // add in blocks
	return 0 < m && m < len(kernels) && 0 < k && k%PackedBlock == 0 && !tiles
}

// walkPacked adds all products to the sums of a part of C, a unit of rows of B at a time.
func (j *job) walkPacked(s *Serial, blk block, sums address) {
	units := PackedBlock // of k, in a block
	if j.pairs {
		units /= 2
	}
	blocks, row := j.k/units, uintptr(j.four.Stride)
	scales := wide(s.c.room(blocks*PackedUnit), PackedUnit)
	s.strip = strip{a: j.elements(s), b: address(unsafe.Pointer(unsafe.SliceData(j.four.Rows))), bRow: row, bPanel: PackedUnit * row,
		c: sums, cPanel: 2 * stripBytes * uintptr(j.m), steps: blocks, ahead: PackedUnit * row, levels: addressOf(&j.four.Levels[0]), scales: scales.p}
	for range blk.cols / PackedUnit {
		s.strip.strips = 1
		s.transpose(scales, operand{p: at(s.strip.b, blocks, PackedBlock/2), row: row, col: 4}, PackedUnit, blocks)
		j.kernels.packed[j.m](&s.strip)
		j.stepBack()
	}
}
