// Package gguf writes files of weights for llama.cpp and what is built on it (ggml-org/ggml, docs/gguf.md, version 3).
//
// A file has fields of a key and a value each, then the name, extents, type and place of every tensor, then the tensors:
//
//	magic version  tensors fields | key type value ... | name extents type offset ... | padding | data, each at 32 bytes
//
// Extents are written from the fastest to the slowest: those of a matrix [rows, columns] are columns, rows. What is written
// here, other software reads; nothing is read.
package gguf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/athanor-llm/athanor/internal/float16"
)

// Type is how numbers are stored, by its number in files.
type Type uint32

const (
	F32  Type = 0
	F16  Type = 1
	Q5   Type = 6  // Q5_0: 32 numbers as one F16 and, multiplied by it, 5 bits each
	Q8   Type = 8  // Q8_0: 32 numbers as one F16 and, multiplied by it, 8 bits each
	Q4K  Type = 12 // see kquant.go
	Q6K  Type = 14
	BF16 Type = 30
)

// types have the names, the number of numbers in a block and its bytes, and the number of general.file_type. That of Q4K is
// said of files in which some matrices are Q6K. instead is the type of rows that are no whole blocks.
var types = map[Type]struct {
	name         string
	block, bytes int
	file         uint32
	instead      Type
}{F32: {"f32", 1, 4, 0, F32}, F16: {"f16", 1, 2, 1, F16}, Q5: {"q5_0", 32, 22, 8, F16}, Q8: {"q8_0", 32, 34, 7, F16}, Q4K: {"q4_k_m", superBlock, 144, 15, Q5}, Q6K: {"q6_k", superBlock, 210, 18, Q8}, BF16: {"bf16", 1, 2, 32, BF16}}

func (t Type) String() string { return types[t].name }

// FileType is the value of general.file_type for files whose matrices are of a type.
func (t Type) FileType() uint32 { return types[t].file }

// TypeNamed is the inverse of String.
func TypeNamed(name string) (Type, error) {
	var names []string
	for t, is := range types {
		if is.name == name {
			return t, nil
		}
		names = append(names, is.name)
	}
	slices.Sort(names)
	return 0, fmt.Errorf("%q is not one of %s", name, strings.Join(names, ", "))
}

// OfRows returns the type for rows of so many numbers: t, or a simpler one of about as many bits, as llama.cpp takes it.
func (t Type) OfRows(cols int) Type {
	for !t.Fits(cols) {
		t = types[t].instead
	}
	return t
}

// Fits reports whether rows of so many numbers are whole blocks.
func (t Type) Fits(cols int) bool { return cols%types[t].block == 0 }

// Bytes returns the size of n numbers.
func (t Type) Bytes(n int) int64 { return int64(n/types[t].block) * int64(types[t].bytes) }

// Field is a key and its value: a uint32, float32, bool or string, or a slice of string, int32 or float32.
type Field struct {
	Key   string
	Value any
}

// Tensor is a tensor of one or two dimensions; Read returns its numbers, row by row.
type Tensor struct {
	Name  string
	Shape []int
	Type  Type
	Read  func() ([]float32, error)
}

func (t *Tensor) elems() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// align is the alignment of tensors, which files need not mention.
const align = 32

func padded(n int64) int64 { return (n + align - 1) / align * align }

// Write writes a file.
func Write(to io.Writer, fields []Field, tensors []Tensor) error {
	w := &writer{to: bufio.NewWriterSize(to, 1<<20)}
	w.bytes([]byte("GGUF"))
	w.number(uint32(3))
	w.number(uint64(len(tensors)))
	w.number(uint64(len(fields)))
	for _, f := range fields {
		w.text(f.Key)
		w.value(f.Value)
	}
	at := int64(0)
	for i := range tensors {
		t := &tensors[i]
		w.text(t.Name)
		w.number(uint32(len(t.Shape)))
		for _, d := range slices.Backward(t.Shape) {
			w.number(uint64(d))
		}
		w.number(uint32(t.Type))
		w.number(uint64(at))
		at += padded(t.Type.Bytes(t.elems()))
	}
	w.pad()
	for i := range tensors {
		t := &tensors[i]
		x, err := t.Read()
		if err == nil && len(x) != t.elems() {
			err = fmt.Errorf("it has %d numbers, not %d", len(x), t.elems())
		}
		if err == nil && !t.Type.Fits(t.Shape[len(t.Shape)-1]) {
			err = fmt.Errorf("rows of %d numbers are not whole blocks of %v", t.Shape[len(t.Shape)-1], t.Type)
		}
		if err != nil {
			return fmt.Errorf("tensor %s: %w", t.Name, err)
		}
		w.tensor(t.Type, x)
		w.pad()
	}
	if w.err == nil {
		w.err = w.to.Flush()
	}
	return w.err
}

// writer writes until the first error, which it keeps.
type writer struct {
	to  *bufio.Writer
	n   int64
	err error
}

func (w *writer) bytes(b []byte) {
	if w.err == nil {
		_, w.err = w.to.Write(b)
	}
	w.n += int64(len(b))
}

// number writes a number of a fixed size.
func (w *writer) number(x any) {
	b, err := binary.Append(nil, binary.LittleEndian, x)
	if err != nil {
		panic("gguf: " + err.Error()) // the types are those of the callers below
	}
	w.bytes(b)
}

func (w *writer) text(s string) {
	w.number(uint64(len(s)))
	w.bytes([]byte(s))
}

func (w *writer) pad() { w.bytes(make([]byte, padded(w.n)-w.n)) }

// Numbers of the types of values.
const (
	aUint32, anInt32, aFloat32, aBool, aString, anArray uint32 = 4, 5, 6, 7, 8, 9
)

func (w *writer) value(x any) {
	array := func(kind uint32, n int) {
		w.number(anArray)
		w.number(kind)
		w.number(uint64(n))
	}
	switch x := x.(type) {
	case uint32:
		w.number(aUint32)
		w.number(x)
	case float32:
		w.number(aFloat32)
		w.number(x)
	case bool:
		w.number(aBool)
		w.number(x)
	case string:
		w.number(aString)
		w.text(x)
	case []string:
		array(aString, len(x))
		for _, s := range x {
			w.text(s)
		}
	case []int32:
		array(anInt32, len(x))
		w.number(x)
	case []float32:
		array(aFloat32, len(x))
		w.number(x)
	default:
		panic(fmt.Sprintf("gguf: a field of type %T", x))
	}
}

// tensor writes numbers as a type, rounded to the nearest.
func (w *writer) tensor(t Type, x []float32) {
	const piece = 1 << 14 // a multiple of all blocks
	for round := range slices.Chunk(x, piece*runtime.GOMAXPROCS(0)) {
		pieces := slices.Collect(slices.Chunk(round, piece))
		done := make([][]byte, len(pieces))
		var all sync.WaitGroup
		for i, part := range pieces {
			all.Go(func() { done[i] = t.encode(part) })
		}
		all.Wait()
		for _, b := range done {
			w.bytes(b)
		}
	}
}

// encode returns numbers, whole blocks, as they are stored.
func (t Type) encode(x []float32) []byte {
	b := make([]byte, 0, t.Bytes(len(x)))
	for block := range slices.Chunk(x, types[t].block) {
		switch t {
		case F32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(block[0]))
		case F16:
			b = binary.LittleEndian.AppendUint16(b, float16.ToF16(block[0]))
		case BF16:
			b = binary.LittleEndian.AppendUint16(b, float16.ToBF16(block[0]))
		case Q8:
			b = appendQ8(b, block)
		case Q5:
			b = appendQ5(b, block)
		case Q4K:
			b = appendQ4K(b, block)
		case Q6K:
			b = appendQ6K(b, block)
		}
	}
	return b
}

// appendQ8 appends a block of Q8_0, rounded as ggml does: quantize_row_q8_0_ref.
func appendQ8(b []byte, block []float32) []byte {
	var most float32
	for _, v := range block {
		most = max(most, float32(math.Abs(float64(v))))
	}
	d := most / 127
	b = binary.LittleEndian.AppendUint16(b, float16.ToF16(d))
	inverse := float32(0)
	if d > 0 {
		inverse = 1 / d
	}
	for _, v := range block {
		b = append(b, byte(int8(math.Round(float64(v*inverse)))))
	}
	return b
}

// appendQ5 appends a block of Q5_0, rounded as ggml does: the number of the largest magnitude is -16, with a scale of either sign.
func appendQ5(b []byte, block []float32) []byte {
	var most float32
	for _, v := range block {
		if math.Abs(float64(v)) > math.Abs(float64(most)) {
			most = v
		}
	}
	d := most / -16
	inverse := float32(0)
	if d != 0 {
		inverse = 1 / d
	}
	var q [32]byte
	var high uint32
	for i, v := range block {
		q[i] = byte(min(31, int(float32(v*inverse)+16.5)))
		high |= uint32(q[i]>>4) << i
	}
	b = binary.LittleEndian.AppendUint16(b, float16.ToF16(d))
	b = binary.LittleEndian.AppendUint32(b, high)
	for i := range 16 {
		b = append(b, q[i]&15|q[i+16]&15<<4)
	}
	return b
}
