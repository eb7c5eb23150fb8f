package simd

import (
	"golang.org/x/sys/cpu"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/float16"
)

// Sets returns the tables that this processor can use, the best first.
func Sets() []*Set {
	var list []*Set
	x := cpu.X86
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasBMI2 {
		s := setAVX512()
		s.NF4Half, s.Expand = nf4HalfAVX512, expandWordsAVX512
		s.Encode, s.Largest = encodeAVX2, largestAVX2
		if x.HasAVX512VBMI {
			s.Decode, s.Encode, s.Largest = decodeAVX512, encodeAVX512, largestAVX512
		}
		list = append(list, s)
	}
	if x.HasAVX2 && x.HasFMA {
		s := setAVX2()
		s.Encode, s.Largest = encodeAVX2, largestAVX2
		list = append(list, s)
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

// nf4HalfRest is NF4Half from the given block on.
func nf4HalfRest(y []uint16, indices []byte, scales []float32, block int) {
	for i := block * graph.NF4Block; i < min(len(y), 2*len(indices), graph.NF4Block*len(scales)); i++ {
		y[i] = float16.ToBF16(graph.NF4Levels[indices[i/2]>>(i%2*4)&15] * scales[i/graph.NF4Block])
	}
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

func countsAVX512(y []float32, list []byte, bits int, least, step float32) {
	switch {
	case len(y) != graph.CacheGroup:
		counts(y, list, bits, least, step)
	case bits == 8:
		counts8AVX512(y, list[:graph.CacheGroup], least, step)
	default:
		counts4AVX512(y, list[:graph.CacheGroup/2], least, step)
	}
}

func countsAVX2(y []float32, list []byte, bits int, least, step float32) {
	switch {
	case len(y) != graph.CacheGroup:
		counts(y, list, bits, least, step)
	case bits == 8:
		counts8AVX2(y, list[:graph.CacheGroup], least, step)
	default:
		counts4AVX2(y, list[:graph.CacheGroup/2], least, step)
	}
}
