//go:build amd64 || arm64

package simd

import "github.com/athanor-llm/athanor/graph"

//go:generate go run ./gen

// Assembly processes whole blocks, Go the rest.

// nf4Blocks returns the number of whole blocks.
func nf4Blocks[T Stored](y []T, indices []byte, scales []float32) int {
	return min(len(y)/graph.NF4Block, 2*len(indices)/graph.NF4Block, len(scales))
}

// transposeVector is Transpose with blocks of 8 x 8.
func transposeVector(dst, src []float32, rows, cols, stride int) {
	if rows <= 0 || cols <= 0 {
		return
	}
	_, _ = dst[rows*cols-1], src[(rows-1)*stride+cols-1]
	r8, c8 := rows&^7, cols&^7
	transposeBlocks(dst, src, rows, cols, stride)
	transposePart(dst, src, r8, rows, 0, cols, rows, stride)
	transposePart(dst, src, 0, r8, c8, cols, rows, stride)
}
