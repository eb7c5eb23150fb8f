package simd

import (
	"golang.org/x/sys/cpu"

	"github.com/athanor-llm/athanor/graph"
)

//go:generate go run ./gen

// Sets returns the tables that this processor can use, the best first.
func Sets() []*Set {
	var list []*Set
	x := cpu.X86
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasBMI2 {
		list = append(list, setAVX512())
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

func nf4AVX2(y []float32, indices []byte, scales []float32) {
	n := nf4Blocks(y, indices, scales)
	nf4BlocksAVX2(y, indices, scales, n)
	nf4Rest(y, indices, scales, n)
}

// nf4Blocks returns the number of whole blocks.
func nf4Blocks(y []float32, indices []byte, scales []float32) int {
	return min(len(y)/graph.NF4Block, 2*len(indices)/graph.NF4Block, len(scales))
}

func transposeAVX2(dst, src []float32, rows, cols, stride int) {
	if rows <= 0 || cols <= 0 {
		return
	}
	_, _ = dst[rows*cols-1], src[(rows-1)*stride+cols-1]
	r8, c8 := rows&^7, cols&^7
	transposeBlocks(dst, src, rows, cols, stride)
	transposePart(dst, src, r8, rows, 0, cols, rows, stride)
	transposePart(dst, src, 0, r8, c8, cols, rows, stride)
}
