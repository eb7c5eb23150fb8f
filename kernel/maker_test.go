package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
)

// sample is a random call of an operator.
type sample struct {
	op    graph.Op
	attr  graph.Attr
	t     []Tensor
	token []bool  // operands with a row per token
	tol   float64 // of f32 results, relative to the operand's largest element
	floor float64 // lower bound for that largest element: the size of terms that may cancel
}

func (s sample) String() string {
	out := s.op.String() + fmt.Sprintf(" %+v", s.attr)
	for i, x := range s.t {
		out += fmt.Sprintf(" %s[%dx%d/%d %v]", s.op.Info().Args[i].Name, x.Rows, x.Cols, x.Stride, x.DType)
	}
	return out
}

// maker builds random samples: extents and types vary, memory may be unaligned,
// rows may have gaps.
type maker struct {
	*rand.Rand
	mixed bool // bf16 where the operator allows it
	acc   bool
}

var extents = []int{1, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33, 48, 61, 64, 67, 96, 127, 130, 257}

func (m *maker) n() int { return extents[m.IntN(len(extents))] }

// rows returns a random number of rows, sometimes 0.
func (m *maker) rows() int {
	if m.IntN(12) == 0 {
		return 0
	}
	return m.n()
}

// float returns f32, or bf16 half of the time in a mixed sample.
func (m *maker) float() graph.DType {
	if m.mixed && m.IntN(2) == 0 {
		return graph.BF16
	}
	return graph.F32
}

// bound bounds gates and ups of a SwiGLU, sometimes.
func (m *maker) bound(a *graph.Attr) {
	if m.IntN(2) == 0 {
		a.Act, a.Limit, a.Alpha = model.SiLU, 0.75, 1.702
	}
}

// cap sometimes caps scores.
func (m *maker) cap(a *graph.Attr) {
	if m.IntN(3) == 0 {
		a.Limit = 0.5 + m.Float64()
	}
}

// scored sometimes makes a router score experts by themselves, and multiply their weights.
func (m *maker) scored(a *graph.Attr) {
	if a.Sigmoid = m.IntN(2) == 0; m.IntN(2) == 0 {
		a.Alpha = 2.5
	}
}

// poison marks memory that no kernel may read or, outside its operands, write.
var poison = math.NaN()

// mat returns a matrix of normally distributed numbers (times scale) with poisoned
// gaps.
func (m *maker) mat(d graph.DType, rows, cols int, scale float64) Tensor {
	gap := 0
	if m.IntN(2) == 0 {
		gap = m.IntN(6)
	}
	off := m.IntN(5)
	t := NewTensor(d, 1, off+rows*(cols+gap)+3)
	for i := range t.Cols {
		t.Set(0, i, poison)
	}
	t.Rows, t.Cols, t.Stride = rows, cols, cols+gap
	switch d {
	case graph.F32:
		t.F32 = t.F32[off:]
	case graph.BF16:
		t.BF16 = t.BF16[off:]
	case graph.I32:
		t.I32 = t.I32[off:]
	case graph.F64:
		t.F64 = t.F64[off:]
	}
	for r := range rows {
		for c := range cols {
			t.Set(r, c, m.NormFloat64()*scale)
		}
	}
	return t
}

// ints returns a column of integers in [lo, hi).
func (m *maker) ints(rows, lo, hi int) Tensor {
	t := m.mat(graph.I32, rows, 1, 1)
	for r := range rows {
		t.Set(r, 0, float64(lo+m.IntN(hi-lo)))
	}
	return t
}

// f32 and any are shorthands for mat.
func (m *maker) f32(rows, cols int) Tensor { return m.mat(graph.F32, rows, cols, 1) }
func (m *maker) any(rows, cols int) Tensor { return m.mat(m.float(), rows, cols, 1) }

// positive returns positive numbers: reciprocal deviations and second moments.
func (m *maker) positive(rows, cols int) Tensor { return m.above0(graph.F32, rows, cols) }

func (m *maker) above0(d graph.DType, rows, cols int) Tensor {
	t := m.mat(d, rows, cols, 1)
	for r := range rows {
		for c := range cols {
			t.Set(r, c, 0.01+math.Abs(t.At(r, c)))
		}
	}
	return t
}

// stats returns means and reciprocal deviations.
func (m *maker) stats(rows int) Tensor {
	t := m.positive(rows, 2)
	for r := range rows {
		t.Set(r, 0, m.NormFloat64())
	}
	return t
}

func (m *maker) weight(d graph.DType, in, out int, transposed bool) Tensor {
	if transposed {
		return m.mat(d, out, in, 1)
	}
	return m.mat(d, in, out, 1)
}

// experts returns k different experts for each token, in ascending order.
func (m *maker) experts(rows, k, of int) Tensor {
	t := m.mat(graph.I32, rows, k, 1)
	for r := range rows {
		ids := m.Perm(of)[:k]
		slices.Sort(ids)
		for i, e := range ids {
			t.Set(r, i, float64(e))
		}
	}
	return t
}

// groups returns the attributes of an RMSNorm.
func (m *maker) groups() graph.Attr {
	return graph.Attr{Eps: 1e-5, Heads: m.IntN(4), UnitOffset: m.IntN(2) == 0}
}

// turned returns how many columns of a head are rotated.
func (m *maker) turned(a graph.Attr) int { return 2 * (1 + m.IntN(a.HeadDim/2)) }

// heads returns a random attention shape and number of tokens.
func (m *maker) heads() (graph.Attr, int) {
	g := 1 + m.IntN(3)
	a := graph.Attr{Seq: m.n(), KVHeads: g, Heads: g * (1 + m.IntN(3)), HeadDim: []int{1, 2, 5, 8, 16, 20, 33, 64}[m.IntN(8)]}
	if m.IntN(10) == 0 { // several blocks of keys, and the larger blocks of queries
		a.Seq, a.Heads, a.KVHeads = 257+m.IntN(300), 2, 1
	}
	a.Scale = 1 / math.Sqrt(float64(a.HeadDim))
	if m.IntN(3) == 0 {
		a.Window = m.n()
	}
	n := a.Seq * (1 + m.IntN(2))
	if m.IntN(4) == 0 { // the last sequence is shorter
		n -= m.IntN(a.Seq)
	}
	return a, n
}

// starts returns random document starts for queries that are the last of the given
// number of rows with keys. Half of the time there is one document and the operand
// is absent.
func (m *maker) starts(a graph.Attr, queries, keys int) Tensor {
	if m.IntN(2) == 0 {
		return Tensor{}
	}
	t, mean, start := m.mat(graph.I32, queries, 1, 1), m.n(), 0
	for row := range keys {
		switch at := row % a.Seq; {
		case at == 0:
			start = 0
		case m.IntN(mean) == 0:
			start = at
		}
		if n := row - (keys - queries); n >= 0 {
			t.Set(n, 0, float64(start))
		}
	}
	return t
}

// sinks returns random sinks of heads, some far below or above all scores. Half of the time
// the operand is absent.
func (m *maker) sinks(a graph.Attr) Tensor {
	if m.IntN(2) == 0 {
		return Tensor{}
	}
	return m.mat(m.float(), 1, a.Heads, []float64{1, 30}[m.IntN(2)])
}

// slice returns the shape of whole sequences or of a slice of one, with the numbers
// of queries and keys. token is set for whole sequences, which may be cut at
// sequences.
func (m *maker) slice() (a graph.Attr, queries, keys int, token bool) {
	a, n := m.heads()
	if n > a.Seq || m.IntN(2) == 0 {
		return a, n, n, true
	}
	return a, 1 + m.IntN(n), n, false
}

// roundedFactors returns the tolerance of attention: with bf16 factors,
// probabilities are rounded to bf16, by up to 2^-9 each.
func roundedFactors(t ...Tensor) float64 {
	for i := range t {
		if t[i].DType == graph.BF16 {
			return 1.0 / 128
		}
	}
	return 3e-5
}

// places draws where n rows are, among so many sequences: all from position pos on of one of them, or each by itself, up to the
// position of the last in the first case, some idle.
func (m *maker) places(n, slots, pos int) Tensor {
	cols := 1 + m.IntN(2)
	if slots > 1 {
		cols = 2
	}
	if n < 2 || m.IntN(2) == 0 {
		t := m.ints(1, pos, pos+1)
		if cols == 2 {
			t = Tensor{DType: graph.I32, Rows: 1, Cols: 2, Stride: 2, I32: []int32{int32(pos), int32(m.IntN(slots))}}
		}
		return t
	}
	t := Tensor{DType: graph.I32, Rows: n, Cols: 2, Stride: 2}
	for _, p := range m.Perm(slots * (pos + n))[:n] { // no two rows in one place
		position := int32(p % (pos + n))
		if m.IntN(4) == 0 {
			position = -1
		}
		t.I32 = append(t.I32, position, int32(p/(pos+n)))
	}
	return t
}
