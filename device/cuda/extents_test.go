//go:build linux

package cuda

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// Extents of samples, drawn so that partial, single and multiple tiles all occur, and what attention has besides.

func (s *sample) n() int { return []int{1, 2, 3, 7, 8, 16, 17, 33, 64, 67, 100, 130}[s.IntN(12)] }

// cols is an extent along rows.
func (s *sample) cols() int {
	if s.wide {
		return 8 * (1 + s.IntN(12))
	}
	return s.n()
}

// long draws rows and an extent of them that a block works through, sometimes in several
// steps or by several warps.
func (s *sample) long() (rows, cols int) {
	rows = s.n()
	if s.IntN(3) > 0 {
		return rows, s.cols()
	}
	more := 60
	if rows <= 17 {
		more = 300
	}
	return rows, s.cols() + 8*(40+s.IntN(more))
}

// heads draws an attention shape and returns the rows and the width of qkv.
func (s *sample) heads() (rows, width int) {
	g := 1 + s.IntN(2)
	a := &s.call.Attr
	*a = graph.Attr{Seq: []int{1, 7, 32, 33, 70, 130, 300}[s.IntN(7)], KVHeads: g, Heads: g * (1 + s.IntN(2)), HeadDim: 6, Row0: s.IntN(9)}
	if s.wide {
		a.HeadDim = []int{16, 48, 64, 128, 32, 96, 256}[s.IntN(7)]
		if a.HeadDim == 256 {
			a.HeadDim -= 32 * s.IntN(4)
		}
		if s.float == graph.BF16 {
			s.tol = 8e-3 // of tensor cores, whose operands are bf16: the largest element's rounding
		}
	}
	if s.head > 0 {
		a.HeadDim, a.Seq = s.head, []int{130, 300}[s.IntN(2)]
	}
	a.Scale = 1 / math.Sqrt(float64(a.HeadDim))
	if s.IntN(2) == 0 {
		a.Window = 1 + s.IntN(a.Seq/2+40)
	}
	if a.Seq == 300 && a.HeadDim == 256 && s.float == graph.F32 {
		a.Heads, a.KVHeads = 1, 1
	}
	if a.Seq == 300 { // several tiles of every kind, in the room there is
		return a.Seq, (a.Heads + 2*a.KVHeads) * a.HeadDim
	}
	return a.Seq * (1 + s.IntN(2)), (a.Heads + 2*a.KVHeads) * a.HeadDim
}

// turned draws how many columns of a head are rotated.
func (s *sample) turned() int { return 2 * (1 + s.IntN(s.call.Attr.HeadDim/2)) }

// groups draws the shape of an RMSNorm: rows, number of groups and columns per group.
func (s *sample) groups() (rows, cols, groups int) {
	a := &s.call.Attr
	a.Heads, a.UnitOffset = s.IntN(4), s.IntN(2) == 0
	if groups = max(1, a.Heads); groups > 1 {
		return s.n(), s.cols(), groups
	}
	rows, cols = s.long()
	return rows, cols, groups
}

// sinks draws the heads' sinks, some far from all scores, as the given operand. Half of the time there
// is no such operand.
func (s *sample) sinks(operand int) {
	if s.IntN(2) == 0 {
		return
	}
	for len(s.call.Args) < operand {
		s.absent()
	}
	size := []float64{1, 30}[s.IntN(2)]
	s.fill(s.float, 1, s.call.Attr.Heads, func() float64 { return size * s.NormFloat64() })
}

// grouped divides experts into groups of two to six, sometimes, of which those of a token are from as many as k need, or more.
func (s *sample) grouped(all, k int) {
	if size := []int{2, 3, 6}[s.IntN(3)]; s.IntN(2) == 0 && all/size <= 32 {
		a := &s.call.Attr
		a.Groups, a.Best = all/size, (k+size-1)/size
		a.Best += s.IntN(a.Groups - a.Best + 1)
	}
}

// cap sometimes caps scores.
func (s *sample) cap() {
	if s.IntN(3) == 0 {
		s.call.Attr.Limit = 0.5 + s.Float64()
	}
}

// slice draws numbers of queries and keys: those of m rows, or of a slice of one sequence with bounds
// that are multiples of unit.
func (s *sample) slice(m, unit int) (queries, keys int) {
	seq := s.call.Attr.Seq
	if s.IntN(2) == 0 || seq <= unit {
		return m, m
	}
	from := unit * s.IntN((seq-1)/unit)
	to := min(seq, from+unit*(1+s.IntN(seq/unit)))
	return to - from, to
}
