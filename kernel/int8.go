package kernel

import (
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// Weights in int8 (graph.MaxInt8). Products unpack panels of them, as they do of weights in 4 bits; other operators convert rows as
// they read them. Both give the bits of the same weights in fp32, since units are powers of two.
//
// Known weakness: both conversions take an element at a time, some 0.7 ns, which a product of few rows waits for.

// row8 is row for int8.
func (t *Tensor) row8(r, lo, hi int) []int8 {
	return t.I8[r*t.Stride+lo : r*t.Stride+hi : r*t.Stride+hi]
}

func widen8(y []float32, q []int8, unit float32) {
	y = y[:len(q)]
	for i, x := range q {
		y[i] = graph.FromInt8(x) * unit
	}
}

// draw8 rounds weights up or down by chance, as Draw does; keys are those of graph.ChanceKey.
func draw8(q []int8, x []float32, unit float32, first, low, high uint32) {
	scale := 1 / unit // exact
	x = x[:len(q)]
	for i := range q {
		q[i] = graph.RoundInt8(x[i]*scale, simd.Draws(first+uint32(i), low, high))
	}
}

// PackInt8 rounds weights to the nearest multiples of a unit.
func PackInt8(src []float32, unit float64) []byte {
	dst := make([]byte, len(src))
	for i, x := range src {
		dst[i] = byte(graph.RoundInt8(float32(float64(x)/unit), 1<<15))
	}
	return dst
}

// UnpackInt8 is the inverse of PackInt8.
func UnpackInt8(dst []float32, src []byte, unit float64) {
	for i, q := range src {
		dst[i] = float32(float64(graph.FromInt8(int8(q))) * unit)
	}
}
