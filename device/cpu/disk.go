package cpu

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unsafe"
)

const (
	pageSize  = 4096    // unit of direct I/O: addresses, offsets and sizes
	hugePage  = 2 << 20 // alignment of arenas
	diskPiece = 8 << 20 // bytes of one read or write; larger ones are no faster
	bounceLen = 1 << 20 // bytes per transfer through a stream's bounce buffer
)

// disk is the file behind the disk tier.
type disk struct {
	file   blocks
	size   int64
	direct bool // opened for direct I/O
}

// blocks is the file as streams access it.
type blocks interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// openDisk creates the file with all of its blocks. Nobody sees its name, and it
// cannot outlive the process.
func openDisk(path string, size int64) (*disk, error) {
	if path == "" {
		return nil, fmt.Errorf("no path for the disk tier; hint: set limits.disk_path")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, direct, err := openHidden(path)
	if err != nil {
		return nil, fmt.Errorf("%w; hint: set limits.disk_path to a folder that can be written", err)
	}
	d := &disk{file: file, direct: direct, size: (size + pageSize - 1) &^ (pageSize - 1)}
	if err := allocate(file, d.size); err != nil {
		_ = d.close()
		return nil, fmt.Errorf("%s: %d bytes for the disk tier: %w; hint: free some space or set a smaller limits.disk", path, d.size, err)
	}
	return d, nil
}

// allocateByWriting allocates a file's blocks by writing them, which is slow.
func allocateByWriting(f *os.File, size int64) error {
	zeros := alignedBytes(bounceLen)
	for at := int64(0); at < size; at += bounceLen {
		if _, err := f.WriteAt(zeros[:min(bounceLen, size-at)], at); err != nil {
			return err
		}
	}
	return nil
}

func (d *disk) close() error { return d.file.Close() }

// DiskAccess is one stream's access to the disk tier.
type DiskAccess struct {
	disk   *disk
	bounce []byte // aligned
	meter  *Meter // counts the pieces
}

func (d *disk) access(m *Meter) *DiskAccess { return &DiskAccess{d, alignedBytes(bounceLen), m} }

// Read fills p from the file. Aligned reads go straight into p; partial pages go
// through the bounce buffer.
func (a *DiskAccess) Read(p []byte, at int64) error {
	d := a.disk
	for ; len(p) > 0; a.meter.piece() {
		if n := d.straight(p, at); n > 0 {
			if err := full(d.file.ReadAt(p[:n], at)); err != nil {
				return fmt.Errorf("read of %d bytes at %d: %w", n, at, err)
			}
			p, at = p[n:], at+int64(n)
			continue
		}
		page := at &^ (pageSize - 1)
		window := a.bounce[:wholePages(at-page, len(p), len(a.bounce))]
		if err := full(d.file.ReadAt(window, page)); err != nil {
			return fmt.Errorf("read of %d bytes at %d: %w", len(window), page, err)
		}
		n := copy(p, window[at-page:])
		p, at = p[n:], at+int64(n)
	}
	return nil
}

// Write is the converse of Read. Partially written pages are read first. Two streams
// must not write to one page at the same time, which the disk tier's buffer alignment
// rules out.
func (a *DiskAccess) Write(p []byte, at int64) error {
	d := a.disk
	for ; len(p) > 0; a.meter.piece() {
		if n := d.straight(p, at); n > 0 {
			if err := full(d.file.WriteAt(p[:n], at)); err != nil {
				return fmt.Errorf("write of %d bytes at %d: %w", n, at, err)
			}
			p, at = p[n:], at+int64(n)
			continue
		}
		page := at &^ (pageSize - 1)
		window := a.bounce[:wholePages(at-page, len(p), len(a.bounce))]
		n := min(len(p), len(window)-int(at-page))
		if n < len(window) {
			if err := full(d.file.ReadAt(window, page)); err != nil {
				return fmt.Errorf("read of %d bytes at %d: %w", len(window), page, err)
			}
			a.meter.piece()
		}
		copy(window[at-page:], p[:n])
		if err := full(d.file.WriteAt(window, page)); err != nil {
			return fmt.Errorf("write of %d bytes at %d: %w", len(window), page, err)
		}
		p, at = p[n:], at+int64(n)
	}
	return nil
}

// straight returns how many bytes can bypass the bounce buffer: 0 if the start is
// unaligned.
func (d *disk) straight(p []byte, at int64) int {
	n := min(len(p), diskPiece)
	if !d.direct {
		return n
	}
	if at%pageSize != 0 || uintptr(unsafe.Pointer(&p[0]))%pageSize != 0 {
		return 0
	}
	return n &^ (pageSize - 1)
}

// wholePages returns the length of the pages that cover n bytes after skip, at most
// limit.
func wholePages(skip int64, n, limit int) int {
	return min(int(skip)+n+pageSize-1, limit) &^ (pageSize - 1)
}

// full turns a short transfer into an error.
func full(n int, err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// alignedBytes returns n page-aligned bytes.
func alignedBytes(n int) []byte {
	b := make([]byte, n+pageSize)
	skip := -uintptr(unsafe.Pointer(&b[0])) % pageSize
	return b[skip : skip+uintptr(n)]
}
