package gemm

import "golang.org/x/sys/cpu"

//go:generate go run ./gen

// sets returns the instruction sets that this processor has, the best first.
func sets() []*isa {
	var list []*isa
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL {
		list = append(list, &avx512)
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		list = append(list, &avx2)
	}
	return append(list, &portable)
}

var avx512 = isa{
	name:      "avx512",
	nr:        32,
	strip:     16,
	kernels:   kernels512,
	narrow:    narrow512,
	transpose: transpose512,
	deal:      dealAVX512,
	peak:      peakFMA512,
	peakFlops: 4 * 16 * 2 * 16,
}

func dealAVX512(m *move) {
	if m.mask>>48 == 0 {
		deal512x1(m)
	} else {
		deal512x2(m)
	}
}

var avx2 = isa{
	name:      "avx2",
	nr:        16,
	strip:     8,
	kernels:   kernels256,
	narrow:    narrow256,
	transpose: transposeAVX2,
	deal:      dealAVX2,
	peak:      peakFMA256,
	peakFlops: 4 * 12 * 2 * 8,
}

// transposeAVX2 does whole blocks of 8x8 in assembly and the edges in Go.
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

// dealAVX2 does panels of the full 16 elements in assembly and others in Go.
func dealAVX2(m *move) {
	if m.mask == 0xffff_0000_ffff {
		deal256(m)
	} else {
		portableDeal(m)
	}
}
