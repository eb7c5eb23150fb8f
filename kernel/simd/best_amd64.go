package simd

import "golang.org/x/sys/cpu"

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
