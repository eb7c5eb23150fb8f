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

// AVX2 stores no part of a vector of 16-bit elements, so the assembly leaves
// the last ones to Go, whose conversions have the same bits.

func widenTailAVX2(y []float32, x []uint16) {
	n := min(len(y), len(x)) &^ 7
	widenAVX2(y, x)
	widen(y[n:], x[n:])
}

func narrowTailAVX2(y []uint16, x []float32) {
	n := min(len(y), len(x)) &^ 7
	narrowAVX2(y, x)
	narrow(y[n:], x[n:])
}

func adamW16TailAVX2(p, m, v, g []float32, p16 []uint16, c *AdamW) {
	n := min(len(p), len(m), len(v), len(g), len(p16))
	k := n &^ 7
	adamW16AVX2(p, m, v, g, p16, c)
	adamWAVX2(p[k:n], m[k:], v[k:], g[k:], c)
	narrow(p16[k:n], p[k:])
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
