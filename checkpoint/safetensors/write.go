package safetensors

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/athanor-llm/athanor/internal/float16"
)

// Tensor is a tensor whose data is written on request: Data writes exactly Bytes() bytes, row-major and little endian, in
// any number of calls (WriteFloat32 helps). It is called once, when the tensor's turn comes.
type Tensor struct {
	Info
	Data func(w io.Writer) error
}

// Divided is a writer of a file of which other processes write parts. Data may find that its writer is one.
type Divided interface {
	io.Writer
	// Leave leaves the next n bytes to others, each of which writes some of them. begin tells each the file, relative to a folder that
	// all know, and the offset of the n bytes; what it returns waits for its bytes, and returns the CRC-32C of all n with zeros
	// where those of the others are.
	Leave(n int64, begin ...func(file string, offset int64) (sum func() (uint32, error))) error
	io.WriterAt // for one of them that is this process
}

// Float32s is a tensor of values in memory, stored as F32, BF16, F16 or F64. The slice is read when the tensor is
// written, not before.
func Float32s(name string, d DType, shape []int, values []float32) Tensor {
	return Tensor{Info{name, d, shape}, func(w io.Writer) error { return WriteFloat32(w, d, values) }}
}

// WriteFloat32 writes values as F32, BF16, F16 (rounded to nearest even) or F64.
func WriteFloat32(w io.Writer, d DType, values []float32) error {
	encode := encoder(d)
	if encode == nil {
		return fmt.Errorf("float32 cannot be converted to %s", d)
	}
	if raw, ok := asStored(values); ok && d == F32 {
		_, err := w.Write(raw)
		return err
	}
	size := d.Size()
	buffer := make([]byte, min(len(values), pieceElements)*size)
	for len(values) > 0 {
		n := min(len(values), pieceElements)
		encode(buffer, values[:n])
		if _, err := w.Write(buffer[:n*size]); err != nil {
			return err
		}
		values = values[n:]
	}
	return nil
}

// WriteBF16 writes values that are already bf16 numbers. Others are an error: they would change.
func WriteBF16(w io.Writer, values []float32) error {
	buffer := make([]byte, min(len(values), pieceElements)*BF16.Size())
	for len(values) > 0 {
		n := min(len(values), pieceElements)
		if i := float16.WriteExactBF16(buffer, values[:n]); i >= 0 {
			return fmt.Errorf("%v is not a bf16 number", values[i])
		}
		if _, err := w.Write(buffer[:n*BF16.Size()]); err != nil {
			return err
		}
		values = values[n:]
	}
	return nil
}

// Write writes one file: the header, then the tensors' data. Wide types come first, which keeps every tensor aligned to
// its element size; otherwise the order is the caller's. Metadata may be nil; transformers expects {"format": "pt"}.
func Write(w io.Writer, metadata map[string]string, tensors []Tensor) error {
	tensors = slices.Clone(tensors)
	slices.SortStableFunc(tensors, func(a, b Tensor) int { return cmp.Compare(b.DType.Size(), a.DType.Size()) })
	entries, err := layOut(tensors)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	header := printHeader(metadata, entries)
	if len(header) > maxHeader {
		return fmt.Errorf("safetensors: the header has %d bytes, the limit is %d\nhint: split the file", len(header), maxHeader)
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, t := range tensors {
		counted := &exactly{w: w, left: t.Bytes()}
		to := io.Writer(counted)
		if d, ok := w.(Divided); ok {
			to = dividedly{counted, d}
		}
		err := t.Data(to)
		if err == nil && counted.left != 0 {
			err = fmt.Errorf("its data is %d bytes short of %d", counted.left, t.Bytes())
		}
		if err != nil {
			return fmt.Errorf("safetensors: tensor %.80q: %w", t.Name, err)
		}
	}
	return nil
}

// layOut checks names and shapes and assigns consecutive offsets.
func layOut(tensors []Tensor) ([]entry, error) {
	entries := make([]entry, 0, len(tensors))
	seen := make(map[string]bool, len(tensors))
	at := int64(0)
	for _, t := range tensors {
		if err := t.check(); err != nil {
			return nil, err
		}
		switch {
		case seen[t.Name]:
			return nil, fmt.Errorf("duplicate tensor %.80q", t.Name)
		case t.Name == metadataKey || !utf8.ValidString(t.Name):
			return nil, fmt.Errorf("%.80q cannot be the name of a tensor", t.Name)
		case t.Bytes() > 1<<62-at:
			return nil, fmt.Errorf("tensor %.80q: more than 2^62 bytes in one file", t.Name)
		}
		seen[t.Name] = true
		entries = append(entries, entry{t.Info, at, at + t.Bytes()})
		at += t.Bytes()
	}
	return entries, nil
}

// exactly passes on up to left bytes; one more is an error, before it can shift the tensors that follow.
type exactly struct {
	w    io.Writer
	left int64
}

func (e *exactly) Write(p []byte) (int, error) {
	if err := e.room(int64(len(p))); err != nil {
		return 0, err
	}
	n, err := e.w.Write(p)
	e.left -= int64(n)
	return n, err
}

func (e *exactly) room(n int64) error {
	if n > e.left {
		return fmt.Errorf("its data has %d bytes more than its shape", n-e.left)
	}
	return nil
}

// dividedly is exactly for a file of which others write parts.
type dividedly struct {
	*exactly
	to Divided
}

func (d dividedly) Leave(n int64, begin ...func(file string, offset int64) (sum func() (uint32, error))) error {
	if err := d.room(n); err != nil {
		return err
	}
	d.left -= n
	return d.to.Leave(n, begin...)
}

func (d dividedly) WriteAt(b []byte, offset int64) (int, error) { return d.to.WriteAt(b, offset) }
