package kernel

import (
	"math/bits"

	"github.com/athanor-llm/athanor/graph"
)

// Compress and Expand: elements that a mask keeps, one after the other, and at their places. Each line of the mask can be
// handled by itself, so workers share lines. Places beyond the room of the kept elements do not exist.

func compressRef(_ *Env, _ *graph.Attr, t []Tensor) {
	y, x := &t[graph.CompressY], &t[graph.CompressX]
	for c := range y.Cols {
		y.Set(0, c, 0)
	}
	graph.EachKept(t[graph.CompressMask].I32, 0, x.Cols, func(i, place int) {
		if uint(place) < uint(y.Cols) {
			y.Set(0, place, x.At(0, i))
		}
	})
}

func expandRef(_ *Env, _ *graph.Attr, t []Tensor) {
	y, x := &t[graph.ExpandY], &t[graph.ExpandX]
	for c := range y.Cols {
		y.Set(0, c, 0)
	}
	graph.EachKept(t[graph.ExpandMask].I32, 0, y.Cols, func(i, place int) {
		if uint(place) < uint(x.Cols) {
			y.Set(0, i, x.At(0, place))
		}
	})
}

// linesPerTask is the number of lines of a mask that a worker takes at a time.
const linesPerTask = grain / graph.MaskSpan

func compress(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byLines(graph.CompressX, compressLines)
}

func expand(e *Env, a *graph.Attr, t []Tensor) { e.begin(a, t).byLines(graph.ExpandY, expandLines) }

// byLines runs the body on blocks of lines of the mask, columns [C0, C1) of the dense operand.
func (c *call) byLines(dense int, body func(c *call, w *worker, b block)) {
	c.blocks(1, c.t[dense].Cols, 1, linesPerTask*graph.MaskSpan, body)
}

func compressLines(c *call, _ *worker, b block) {
	y, x, mask := &c.t[graph.CompressY], &c.t[graph.CompressX], c.t[graph.CompressMask].I32
	if y.DType == graph.BF16 {
		compressed(y.row16(0, 0, y.Cols), x.row16(0, 0, x.Cols), mask, b)
	} else {
		compressed(y.row(0, 0, y.Cols), x.row(0, 0, x.Cols), mask, b)
	}
}

func expandLines(c *call, w *worker, b block) {
	y, x, mask := &c.t[graph.ExpandY], &c.t[graph.ExpandX], c.t[graph.ExpandMask].I32
	if y.DType == graph.BF16 {
		expanded(y.row16(0, 0, y.Cols), x.row16(0, 0, x.Cols), mask, b)
	} else {
		expandWhole(w, y.row(0, 0, y.Cols), x.row(0, 0, x.Cols), mask, b)
	}
}

// compressed appends the kept elements of columns [C0, C1) of x to y, where the mask says that they begin, and zeros after the last.
func compressed[T float32 | uint16](y, x []T, mask []int32, b block) {
	place := 0
	for lo := b.C0; lo < b.C1; lo += graph.MaskSpan {
		words := mask[lo/graph.MaskSpan*graph.MaskLine:][:graph.MaskLine]
		place = int(words[0])
		for i, word := range words[1:] {
			for rest := uint32(word); rest != 0; rest &= rest - 1 {
				if uint(place) < uint(len(y)) {
					y[place] = x[lo+32*i+bits.TrailingZeros32(rest)]
				}
				place++
			}
		}
	}
	if b.C1 == len(x) {
		clear(y[min(max(place, 0), len(y)):])
	}
}

// expandWhole is expanded, for whole lines by instructions for that, if there are any.
func expandWhole(w *worker, y, x []float32, mask []int32, b block) {
	for lo := b.C0; lo < b.C1; lo += graph.MaskSpan {
		hi := min(lo+graph.MaskSpan, b.C1)
		words := mask[lo/graph.MaskSpan*graph.MaskLine:][:graph.MaskLine]
		place, kept := int(words[0]), 0
		for _, word := range words[1:] {
			kept += bits.OnesCount32(uint32(word))
		}
		if w.v.Expand == nil || hi-lo < graph.MaskSpan || place < 0 || place+kept > len(x) {
			expanded(y, x, mask, block{b.R0, b.R1, lo, hi})
			continue
		}
		w.v.Expand(y[lo:hi], x[place:place+kept], words[1:])
	}
}

// expanded is the inverse of compressed.
func expanded[T float32 | uint16](y, x []T, mask []int32, b block) {
	for lo := b.C0; lo < b.C1; lo += graph.MaskSpan {
		words := mask[lo/graph.MaskSpan*graph.MaskLine:][:graph.MaskLine]
		place, line := int(words[0]), y[lo:min(lo+graph.MaskSpan, len(y))]
		clear(line)
		for i, word := range words[1:] {
			for rest := uint32(word); rest != 0; rest &= rest - 1 {
				if uint(place) < uint(len(x)) {
					line[32*i+bits.TrailingZeros32(rest)] = x[place]
				}
				place++
			}
		}
	}
}
