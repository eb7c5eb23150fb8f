package simd

import "golang.org/x/sys/cpu"

// Sets returns the tables that this processor can use, the best first.
func Sets() []*Set {
	var list []*Set
	x := cpu.X86
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasBMI2 {
		s := setAVX512()
		s.NF4Half = nf4HalfAVX512
		list = append(list, s)
	}
	if x.HasAVX2 && x.HasFMA {
		list = append(list, setAVX2())
	}
	return append(list, Portable())
}

func nf4AVX512(y []float32, indices []byte, scales []float32) {
	n := nf4Blocks(y, indices, scales)
	nf4BlocksAVX512(y, indices, scales, n)
	nf4Rest(y, indices, scales, n)
}

func nf4HalfAVX512(y []uint16, indices []byte, scales []float32) {
	n := nf4Blocks(y, indices, scales)
	nf4HalfBlocksAVX512(y, indices, scales, n)
	nf4HalfRest(y, indices, scales, n)
}

func nf4AVX2(y []float32, indices []byte, scales []float32) {
	n := nf4Blocks(y, indices, scales)
	nf4BlocksAVX2(y, indices, scales, n)
	nf4Rest(y, indices, scales, n)
}

// transposeAVX2 is for AVX-512 too: it is limited by memory on any machine.
func transposeAVX2(dst, src []float32, rows, cols, stride int) {
	transposeVector(dst, src, rows, cols, stride)
}
