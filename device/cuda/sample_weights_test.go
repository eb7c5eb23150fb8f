//go:build linux

package cuda

import (
	"bytes"
	"math"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel"
)

// Operands of samples that are weights, in one of their formats, and statistics.

func (s *sample) weight(d graph.DType, in, out int) {
	if s.call.Attr.WT {
		in, out = out, in
	}
	s.fill(d, in, out, s.NormFloat64)
}

func (s *sample) stats(rows int) {
	o := s.positive(rows, 2)
	t := tensor(s.image, o)
	for r := range rows {
		t.Set(r, 0, s.NormFloat64())
	}
}

// maybePacked makes a weight, in 4 bits one time in three, and to be multiplied in FP8 another.
func (s *sample) maybePacked(in, out int) {
	if kind := s.IntN(3); kind > 0 {
		s.weight(s.float, in, out)
		s.call.Attr.FP8 = kind == 2 && (s.call.Op == graph.Linear || s.call.Op == graph.LinearDX)
		return
	}
	s.packed(in, out)
}

// packed makes a weight in 4 bits.
func (s *sample) packed(in, out int) {
	if s.call.Attr.WT {
		in, out = out, in
	}
	s.nf4(in, out)
}

// nf4 makes a matrix in 4 bits. What follows it in memory are NaNs.
func (s *sample) nf4(rows, cols int) {
	s.call.Attr.NF4 = true
	o := s.place(s.float, rows, graph.NF4Cols(cols, s.float))
	const behind = 8 << 10
	copy(s.image[s.end:s.end+behind], bytes.Repeat([]byte{0xff}, behind))
	s.end += behind
	plain := make([]float32, rows*cols)
	for i := range plain {
		plain[i] = float32(s.NormFloat64())
	}
	packed := kernel.PackNF4(plain, cols)
	for r := range rows {
		n := len(packed) / rows
		copy(s.image[o.Addr+int64(r*o.Stride)*s.float.Size():], packed[r*n:(r+1)*n])
	}
}

// masked draws operands of Compress or Expand, with a mask that keeps any share of the elements and room for more.
func (s *sample) masked(compress bool) {
	n, share := 1+s.IntN(20*graph.MaskSpan), s.Float64()
	values, mask := make([]float32, n), make([]int32, graph.MaskWords(n))
	for i := range values {
		if s.Float64() < share {
			values[i] = 1
		}
	}
	to, from := n, graph.SetMask(mask, values)+1+s.IntN(100)
	if compress {
		to, from = from, to
	}
	s.mat(1, to)
	s.mat(1, from)
	i := -1
	s.fill(graph.I32, 1, len(mask), func() float64 { i++; return float64(mask[i]) })
}

// packedMoments makes an operand of moments in 8 bits.
func (s *sample) packedMoments(rows, cols int, squares bool) {
	o := s.place(graph.U8, rows, graph.PackedMoments(cols))
	t, values := tensor(s.image, o), make([]float32, cols)
	for r := range rows {
		for c := range values {
			if values[c] = float32(s.NormFloat64() * math.Pow(10, -4*s.Float64())); squares {
				values[c] *= values[c]
			}
		}
		copy(t.U8[r*t.Stride:], kernel.PackMoments(squares, values))
	}
}

// oneLogit makes of a call of CrossEntropy, now and then, one whose loss is of one logit, or of a single logit with a value.
func (s *sample) oneLogit() {
	s.call.Attr.Score = s.call.Attr.Limit == 0 && s.call.Attr.First == 0 && s.IntN(4) == 0
	if s.IntN(5) > 0 {
		return
	}
	n := s.call.Args[graph.CrossEntropyLoss].Rows
	s.call.Attr, s.call.Args = graph.Attr{Grad: s.call.Attr.Grad}, nil
	s.f32(n, 1)
	s.fill(s.float, n, 1, s.NormFloat64)
	s.ints(n, -1, 1)
	s.fill(graph.F32, 1, graph.NumScalars, func() float64 { return 0.37 })
	s.absent()
	s.absent()
	s.f32(n, 1)
}
