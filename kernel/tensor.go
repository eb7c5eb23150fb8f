package kernel

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/float16"
)

// Tensor is one operand: Rows x Cols elements, row-major, Stride elements
// from one row to the next. Only the slice of its DType is set (for U16 that of BF16); element
// (r, c) is that slice's [r*Stride+c]. The Tensor does not own the memory. The zero Tensor is
// an absent optional operand.
type Tensor struct {
	DType              graph.DType
	Rows, Cols, Stride int
	F32                []float32
	BF16               []uint16
	I32                []int32
	F64                []float64
	I8                 []int8
	Unit               float32 // of I8, see graph.MaxInt8
	U8                 []uint8
}

// NewTensor allocates a contiguous tensor of zeros, for tests.
func NewTensor(d graph.DType, rows, cols int) Tensor {
	t := Tensor{DType: d, Rows: rows, Cols: cols, Stride: cols}
	switch n := rows * cols; d {
	case graph.F32:
		t.F32 = make([]float32, n)
	case graph.BF16, graph.U16:
		t.BF16 = make([]uint16, n)
	case graph.I32:
		t.I32 = make([]int32, n)
	case graph.F64:
		t.F64 = make([]float64, n)
	case graph.I8:
		t.I8 = make([]int8, n)
	case graph.U8:
		t.U8 = make([]uint8, n)
	}
	return t
}

// Absent reports whether the optional operand was left out.
func (t *Tensor) Absent() bool { return t.Rows == 0 && t.Cols == 0 }

// At returns element (r, c).
func (t *Tensor) At(r, c int) float64 {
	i := r*t.Stride + c
	switch t.DType {
	case graph.F32:
		return float64(t.F32[i])
	case graph.BF16:
		return float64(float16.FromBF16(t.BF16[i]))
	case graph.I32:
		return float64(t.I32[i])
	case graph.F64:
		return t.F64[i]
	case graph.U16:
		return float64(t.BF16[i])
	case graph.I8:
		return float64(graph.FromInt8(t.I8[i]) * t.Unit)
	case graph.U8:
		return float64(t.U8[i])
	}
	panic(fmt.Sprintf("kernel: tensor of type %v", t.DType))
}

// Set stores element (r, c), rounded to the tensor's type.
func (t *Tensor) Set(r, c int, v float64) {
	i := r*t.Stride + c
	switch t.DType {
	case graph.F32:
		t.F32[i] = float32(v)
	case graph.BF16:
		t.BF16[i] = float16.ToBF16(float32(v))
	case graph.I32:
		t.I32[i] = int32(v)
	case graph.F64:
		t.F64[i] = v
	case graph.U16:
		t.BF16[i] = uint16(v)
	case graph.I8:
		t.I8[i] = graph.RoundInt8(float32(v)/t.Unit, 1<<15)
	case graph.U8:
		t.U8[i] = uint8(v)
	default:
		panic(fmt.Sprintf("kernel: tensor of type %v", t.DType))
	}
}

// put is Set for a Sum operand: it adds where acc is set.
func (t *Tensor) put(acc bool, r, c int, v float64) {
	if acc {
		v += t.At(r, c)
	}
	t.Set(r, c, v)
}

// bytes returns the size of the elements, without gaps.
func (t *Tensor) bytes() int64 { return int64(t.Rows*t.Cols) * t.DType.Size() }

// begin returns the address of the first element of a float32 or bf16 tensor.
func (t *Tensor) begin() unsafe.Pointer {
	if t.DType == graph.BF16 {
		return unsafe.Pointer(unsafe.SliceData(t.BF16))
	}
	return unsafe.Pointer(unsafe.SliceData(t.F32))
}

// flat reports whether the elements are one row without gaps.
func (t *Tensor) flat() bool { return t.Stride == t.Cols || t.Rows <= 1 }

// resize makes t a contiguous matrix of f32 or bf16, uninitialised, reusing its memory if that
// suffices.
func (t *Tensor) resize(d graph.DType, rows, cols int) {
	t.DType, t.Rows, t.Cols, t.Stride = d, rows, cols, cols
	if n := rows * cols; d == graph.BF16 {
		t.BF16, t.F32 = slices.Grow(t.BF16[:0], n)[:n], nil
	} else {
		t.F32, t.BF16 = slices.Grow(t.F32[:0], n)[:n], nil
	}
}

// ints returns a row of integers.
func (t *Tensor) ints(r int) []int32 { return t.I32[r*t.Stride : r*t.Stride+t.Cols] }

// row returns elements [lo, hi) of row r of a float32 tensor, not a copy.
func (t *Tensor) row(r, lo, hi int) []float32 {
	return t.F32[r*t.Stride+lo : r*t.Stride+hi : r*t.Stride+hi]
}

// row16 is row for bf16.
func (t *Tensor) row16(r, lo, hi int) []uint16 {
	return t.BF16[r*t.Stride+lo : r*t.Stride+hi : r*t.Stride+hi]
}
