// Package safetensors reads and writes the file format in which Hugging Face models keep their weights.
//
// A file is a length, a JSON header of that length and the bytes of the tensors, back to back:
//
//	u64, little endian: n
//	n bytes:  {"__metadata__":{"format":"pt"}, "wte.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, ...}
//	the rest: data; offsets count from here; row-major, little endian, without holes or overlaps
//
// Large models are split over several files, with an index that says which file has which tensor (see Set).
//
// Opening a File checks its header completely, so every name, shape and range in a File can be trusted. Errors caused by
// the content wrap ErrCorrupt. Reading never maps or loads a whole file: ReadBytes and ReadFloat32 read ranges into the
// caller's memory and are safe for concurrent use. Writing streams: a Tensor knows its size and writes its bytes on
// request, so a model is never in memory twice.
//
// Format: https://github.com/huggingface/safetensors, "Format" (also the limit of 100 MB on the header).
package safetensors

import (
	"errors"
	"fmt"
	"math/bits"
)

var (
	// ErrCorrupt is wrapped by every error caused by a file's content.
	ErrCorrupt = errors.New("corrupt")
	// ErrNoTensor is wrapped by the error for a name that a file or folder doesn't hold.
	ErrNoTensor = errors.New("no such tensor")
)

// DType is an element type, as the header spells it.
type DType string

// The element types. Only the first four convert to float32; the others are read and written as bytes.
const (
	F32  DType = "F32"
	BF16 DType = "BF16"
	F16  DType = "F16"
	F64  DType = "F64"

	I64  DType = "I64"
	I32  DType = "I32"
	I16  DType = "I16"
	I8   DType = "I8"
	U64  DType = "U64"
	U32  DType = "U32"
	U16  DType = "U16"
	U8   DType = "U8"
	Bool DType = "BOOL"

	F8E4M3 DType = "F8_E4M3"
	F8E5M2 DType = "F8_E5M2"
)

// Size returns the bytes of one element, 0 for a type that this package doesn't know.
func (d DType) Size() int {
	switch d {
	case F64, I64, U64:
		return 8
	case F32, I32, U32:
		return 4
	case BF16, F16, I16, U16:
		return 2
	case I8, U8, Bool, F8E4M3, F8E5M2:
		return 1
	}
	return 0
}

// Float reports whether elements convert to float32.
func (d DType) Float() bool { return decoder(d) != nil }

// Info describes a tensor: an empty shape is a scalar, a shape with a zero holds no elements.
type Info struct {
	Name  string
	DType DType
	Shape []int
}

// Elements returns the number of elements, the product of the shape.
func (t Info) Elements() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Bytes returns the size of the data.
func (t Info) Bytes() int64 { return int64(t.Elements()) * int64(t.DType.Size()) }

// check rejects a type or shape for which Elements or Bytes would be wrong. The limit on the product of the nonzero
// dimensions keeps every partial product in range, in any order.
func (t Info) check() error {
	size := t.DType.Size()
	if size == 0 {
		return fmt.Errorf("tensor %.80q: unknown dtype %.20q", t.Name, string(t.DType))
	}
	product := uint64(size)
	for _, d := range t.Shape {
		if d < 0 {
			return fmt.Errorf("tensor %.80q: negative dimension %d", t.Name, d)
		}
		high, low := bits.Mul64(product, max(1, uint64(d)))
		if high != 0 || low >= 1<<62 {
			return fmt.Errorf("tensor %.80q: the product of its shape overflows", t.Name)
		}
		product = low
	}
	return nil
}
