package safetensors

import (
	"fmt"
	"io"
	"os"
)

// Source is an open file of known size.
type Source interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// File is a safetensors file whose header has been checked. Its methods may be called concurrently.
type File struct {
	// Metadata holds the strings that the writer left, usually {"format": "pt"}; nil if there are none.
	Metadata map[string]string

	source  Source
	base    int64
	tensors []Info
	entries map[string]entry
}

// Open opens a single file on disk; for models use a Set.
func Open(path string) (*File, error) {
	source, err := OpenSource(path)
	if err != nil {
		return nil, err
	}
	f, err := NewFile(source)
	if err != nil {
		source.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// NewFile reads and checks the header. The File owns the source from then on, unless there is an error.
func NewFile(source Source) (*File, error) {
	entries, metadata, base, err := readHeader(source, source.Size())
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	f := &File{Metadata: metadata, source: source, base: base, entries: make(map[string]entry, len(entries))}
	for _, e := range entries {
		f.tensors = append(f.tensors, e.Info)
		f.entries[e.Name] = e
	}
	return f, nil
}

// Close closes the source.
func (f *File) Close() error { return f.source.Close() }

// Tensors lists what the file holds, in the order of the data. The caller must not change it.
func (f *File) Tensors() []Info { return f.tensors }

// Lookup returns the tensor of that name.
func (f *File) Lookup(name string) (Info, bool) {
	e, ok := f.entries[name]
	return e.Info, ok
}

// ReadBytes fills dst with the tensor's bytes from the given byte offset on.
func (f *File) ReadBytes(name string, offset int64, dst []byte) error {
	e, err := f.find(name)
	if err != nil {
		return err
	}
	if offset < 0 || offset > e.Bytes() || int64(len(dst)) > e.Bytes()-offset {
		return fmt.Errorf("safetensors: tensor %.80q: bytes %d to %d are out of range, it has %d", name, offset, offset+int64(len(dst)), e.Bytes())
	}
	if err := readFull(f.source, dst, f.base+e.begin+offset); err != nil {
		return fmt.Errorf("safetensors: tensor %.80q: %w", name, err)
	}
	return nil
}

// ReadFloat32 fills dst with the elements from index first on, in row-major order, converted from F32, BF16, F16 or F64.
// Only F64 can lose precision.
func (f *File) ReadFloat32(name string, first int, dst []float32) error {
	e, err := f.find(name)
	if err != nil {
		return err
	}
	if first < 0 || first > e.Elements() || len(dst) > e.Elements()-first {
		return fmt.Errorf("safetensors: tensor %.80q: elements %d to %d are out of range, it has %d", name, first, first+len(dst), e.Elements())
	}
	decode := decoder(e.DType)
	if decode == nil {
		return fmt.Errorf("safetensors: tensor %.80q: data type %s cannot be converted to float32", name, e.DType)
	}
	return inShares(len(dst), func(lo, hi int) error {
		dst, first := dst[lo:hi], first+lo
		if raw, ok := asStored(dst); ok && e.DType == F32 {
			return f.ReadBytes(name, int64(first)*4, raw)
		}
		size := e.DType.Size()
		at := f.base + e.begin + int64(first)*int64(size)
		buffer := make([]byte, min(len(dst), pieceElements)*size)
		for len(dst) > 0 {
			n := min(len(dst), pieceElements)
			if err := readFull(f.source, buffer[:n*size], at); err != nil {
				return fmt.Errorf("safetensors: tensor %.80q: %w", name, err)
			}
			decode(dst[:n], buffer)
			dst = dst[n:]
			at += int64(n * size)
		}
		return nil
	})
}

func (f *File) find(name string) (entry, error) {
	e, ok := f.entries[name]
	if !ok {
		return e, fmt.Errorf("safetensors: %w: %.80q", ErrNoTensor, name)
	}
	return e, nil
}

// diskFile is a Source on disk.
type diskFile struct {
	*os.File
	size int64
}

func (d diskFile) Size() int64 { return d.size }

// OpenSource opens a regular file on disk.
func OpenSource(path string) (Source, error) {
	info, err := os.Stat(path) // before it is opened: opening a pipe would wait for a writer
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err = f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return diskFile{f, info.Size()}, nil
}
