package device

import (
	"fmt"
	"hash/crc32"
	"io"
)

// Run is where elements that follow each other are in a block of a file: N of them, from element At of the block on.
type Run struct{ At, N int }

// FileBlock is consecutive bytes of a file, from an offset on, of which several write runs, each its own.
type FileBlock struct {
	Offset, Bytes int64
	Runs          []Run // of one of them, in order; nil: it writes all, and Bytes does not count
}

// Write writes values, elements of so many bytes that are in the block's runs, one run after another. It returns the checksum, CRC-32C,
// of the block with zeros where the others' elements are: the checksum is affine, so the whole block's follows from those of all.
func (b *FileBlock) Write(to io.WriterAt, values []byte, size int) (sum uint32, err error) {
	var zeros [4096]byte
	table, at := crc32.MakeTable(crc32.Castagnoli), int64(0)
	skip := func(to int64) {
		for at < to {
			n := min(to-at, int64(len(zeros)))
			sum, at = crc32.Update(sum, table, zeros[:n]), at+n
		}
	}
	for _, r := range b.Runs {
		first, n := int64(r.At)*int64(size), r.N*size
		if r.N < 1 || r.At < 0 || first < at || first > b.Bytes-int64(n) || n > len(values) {
			return 0, fmt.Errorf("impossible elements %d to %d of a block of %d bytes", r.At, r.At+r.N, b.Bytes)
		}
		skip(first)
		if _, err := to.WriteAt(values[:n], b.Offset+first); err != nil {
			return 0, err
		}
		sum, at, values = crc32.Update(sum, table, values[:n]), at+int64(n), values[n:]
	}
	if len(values) > 0 {
		return 0, fmt.Errorf("%d bytes are left of what a block of %d bytes was to have", len(values), b.Bytes)
	}
	skip(b.Bytes)
	return sum, nil
}
