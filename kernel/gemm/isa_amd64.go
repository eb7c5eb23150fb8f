package gemm

import (
	"slices"

	"golang.org/x/sys/cpu"
)

// sets returns the instruction sets that this processor has, the best first.
func sets() []*isa {
	var list []*isa
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL {
		list = append(list, &avx512)
		if cpu.X86.HasAVX512BF16 {
			list = append(list, &avx512BF16)
			if !cpu.X86.HasAMXTile { // see avx512BF16
				slices.Reverse(list)
			}
		}
		if hasTiles() {
			list = slices.Insert(list, 0, &avx512AMX)
		}
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		list = append(list, &avx2)
	}
	return append(list, &portable)
}

var avx512 = isa{
	name:        "avx512",
	nr:          32,
	strip:       16,
	fma:         family{kernels512, narrows512, columnKernels512, rowKernels512, packedKernels512},
	halfColumns: halfColumnKernels512,
	halfRows:    halfRowKernels512,
	transpose:   transpose512,
	deal:        dealAVX512,
	widen:       func(c *convert) { inVectors(c, 16, widen512, portableWiden, 2, 4) },
	narrow:      func(c *convert) { inVectors(c, 16, narrow512, portableNarrow, 4, 2) },
	peak:        peakFMA512,
	peakFlops:   4 * 16 * 2 * 16,
}

// avx512BF16 is avx512 with VDPBF16PS, which multiplies pairs of bf16. It is not used on processors with AMX: they
// execute it at a quarter of AMD's rate, half that of fp32 multiply-adds, so widening is faster there.
var avx512BF16 = func() isa {
	x := avx512
	x.name = "avx512-bf16"
	x.dot = family{kernelsBF16, narrowsBF16, columnKernelsBF16, rowKernelsBF16, packedKernelsBF16}
	x.zip = zipAVX512
	x.peakDot, x.peakDotFlops = peakBF16, 4*16*4*16
	return x
}()

// avx512AMX is avx512 with products of bf16 on tile registers.
var avx512AMX = func() isa {
	x := avx512
	x.name = "avx512-amx"
	x.tiles = [2][2]func(*grid){{amx1x1, amx1x2}, {amx2x1, amx2x2}}
	x.zip = zipAVX512
	x.peakDot, x.peakDotFlops = peakAMX, 2*2*16*16*32
	return x
}()

func zipAVX512(m *move) {
	if m.mask>>48 == 0 {
		zip512x1(m)
	} else {
		zip512x2(m)
	}
}

func dealAVX512(m *move) {
	if m.mask>>48 == 0 {
		deal512x1(m)
	} else {
		deal512x2(m)
	}
}

var avx2 = isa{
	name:        "avx2",
	nr:          16,
	strip:       8,
	several:     true,
	fma:         family{kernels256, narrows256, inBlocks(columns256), inBlocks(rows256), nil},
	halfColumns: []func(*strip){nil, halfColumns256},
	halfRows:    inBlocks(halfRows256),
	transpose:   transposeAVX2,
	deal:        dealAVX2,
	widen:       func(c *convert) { inVectors(c, 8, widen256, portableWiden, 2, 4) },
	narrow:      func(c *convert) { inVectors(c, 8, narrow256, portableNarrow, 4, 2) },
	peak:        peakFMA256,
	peakFlops:   4 * 12 * 2 * 8,
}

// inBlocks returns the kernels, for one row, on whole strips, given one for half the rows of a strip and half the bytes
// of a step.
func inBlocks(half func(*strip)) []func(*strip) {
	return []func(*strip){nil, func(s *strip) {
		s.steps, s.strips = 2*s.steps, 2*s.strips
		s.aPanel, s.bPanel, s.cPanel = s.aPanel/2, s.bPanel/2, s.cPanel/2
		half(s)
		s.steps /= 2
		s.aPanel, s.bPanel, s.cPanel = 2*s.aPanel, 2*s.bPanel, 2*s.cPanel
	}}
}

// transposeAVX2 transposes whole blocks of 8x8 in assembly and the edges in Go.
func transposeAVX2(m *move) {
	const block = 8
	if m.rows != block || m.mask != 1<<block-1 {
		portableTranspose(m)
		return
	}
	rest := *m
	m.cols &^= block - 1
	if m.cols > 0 {
		transpose256(m)
	}
	rest.cols -= m.cols
	rest.src, rest.dst = at(rest.src, m.cols, 4), at(rest.dst, m.cols, m.dstRow)
	portableTranspose(&rest)
}

func dealAVX2(m *move) {
	switch m.mask {
	case 0xffff_0000_ffff:
		deal256(m)
	case 0x3f_0000_003f: // rows of the highest kernel
		deal256high(m)
	default:
		deal256masked(m)
	}
}
