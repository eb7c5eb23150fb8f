package graph

import (
	"fmt"
	"math"
)

// DType is the storage type of a tensor's elements. Arithmetic is in fp32
// whatever the storage; sums over parameters (norms) and tokens (loss) are
// in fp64.
type DType uint8

const (
	F32 DType = iota
	BF16
	I32
	F64
	U16 // lower halves of fp32 weights, see AdamW
	I8  // weights as multiples of Attr.Unit, see int8.go
	U8  // moments in 8 bits, see MomentBlock
	NumDTypes
)

var dtypes = [NumDTypes]struct {
	name string
	size int64
}{F32: {"f32", 4}, BF16: {"bf16", 2}, I32: {"i32", 4}, F64: {"f64", 8}, U16: {"u16", 2}, I8: {"i8", 1}, U8: {"u8", 1}}

// Size returns the number of bytes of one element.
func (d DType) Size() int64 { return dtypes[d].size }

func (d DType) String() string {
	if int(d) < len(dtypes) {
		return dtypes[d].name
	}
	return fmt.Sprintf("dtype(%d)", d)
}

// Round returns v rounded to F32 or BF16: to nearest, ties to even.
func (d DType) Round(v float64) float64 {
	b := math.Float32bits(float32(v))
	if d == BF16 {
		b = (b + 0x7fff + b>>16&1) &^ 0xffff
	}
	return float64(math.Float32frombits(b))
}

// Dim is the extent of one operand: Rows x Cols elements, row-major.
// A vector is one row. The zero Dim stands for an absent optional operand.
type Dim struct {
	DType      DType
	Rows, Cols int
}

// Elems returns Rows*Cols.
func (d Dim) Elems() int64 { return int64(d.Rows) * int64(d.Cols) }

// Bytes returns the number of bytes of the elements, without padding.
func (d Dim) Bytes() int64 { return d.Elems() * d.DType.Size() }

// Absent reports whether this stands for an optional operand that was left out.
func (d Dim) Absent() bool { return d.Rows == 0 && d.Cols == 0 }
