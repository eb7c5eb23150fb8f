package gemm

import "math/bits"

// sets returns the instruction sets that this processor has, the best first. Every arm64 has NEON.
func sets() []*isa { return []*isa{&neon, &portable} }

var neon = isa{
	name:        "neon",
	nr:          16,
	strip:       16,
	several:     true,
	fma:         family{kernelsNEON, narrowsNEON, columnKernelsNEON, rowKernelsNEON, nil},
	halfColumns: halfColumnKernelsNEON,
	halfRows:    halfRowKernelsNEON,
	transpose:   transposeNEON,
	deal:        dealNEON,
	widen:       func(c *convert) { inVectors(c, 8, widenNEON, portableWiden, 2, 4) },
	narrow:      func(c *convert) { inVectors(c, 8, narrowNEON, portableNarrow, 4, 2) },
	peak:        peakNEON,
	peakFlops:   4 * 24 * 2 * 4,
}

// transposeNEON transposes 16 rows at once, or fewer in groups of 4, in assembly, and the last columns and rows in Go.
func transposeNEON(m *move) {
	const block = 4
	right := *m
	m.cols &^= block - 1
	right.cols -= m.cols
	right.src, right.dst = at(m.src, m.cols, 4), at(m.dst, m.cols, m.dstRow)
	portableTranspose(&right)
	if m.cols == 0 {
		return
	}
	if m.rows == 16 {
		transposeNEON16(m)
		return
	}
	for ; m.rows >= block; m.rows -= block {
		transposeNEON4(m)
		m.src, m.dst, m.mask = at(m.src, block, m.srcRow), at(m.dst, block, 4), m.mask>>block
	}
	portableTranspose(m)
}

// dealNEON copies in assembly and pads in Go.
func dealNEON(m *move) {
	width, fill := bits.Len32(uint32(m.mask)), bits.Len64(m.mask>>32)
	if width < fill {
		for r := range m.rows {
			for p := range m.cols {
				row := at(at(m.dst, r, m.dstRow), p, m.dstPanel)
				for i := width; i < fill; i++ {
					*float(row, i) = 0
				}
			}
		}
	}
	dealsNEON[width](m)
}
