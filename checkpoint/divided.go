package checkpoint

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
)

// Files of which other processes write parts, each what it has, so that a checkpoint is the work of all and nothing is sent
// to one of them. The files are those that one process would write, to the bit. This process makes them, and puts their
// checksums together from those of the parts.
//
// Known weakness: ranges of a file are written by several hosts at once, so the file system must not write back what a
// process has not written. Those for clusters do not: Lustre, GPFS and CephFS keep such writers apart, and NFS sends just
// the bytes that were written.

// dividedFile is a file of which others write parts. It implements safetensors.Divided.
type dividedFile struct {
	folder *folderWriter
	name   string // in the folder
	path   string // from the run's folder, with slashes
	file   *os.File
	at     int64
	parts  []filePart // in order
}

var _ safetensors.Divided = (*dividedFile)(nil)

// filePart is consecutive bytes of a file.
type filePart struct {
	bytes int64
	sum   uint32
	waits []func() (uint32, error) // for the sums of what several write, see Leave; none: this process has written it all
}

// divide opens a file of the folder, as create does, of which others write parts. run is the run's folder.
func (w *folderWriter) divide(run, name string) (*dividedFile, error) {
	path := filepath.Join(w.root, filepath.FromSlash(name))
	from, err := filepath.Rel(run, path)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	return &dividedFile{folder: w, name: name, path: filepath.ToSlash(from), file: file}, nil
}

// Write writes the next bytes.
func (f *dividedFile) Write(b []byte) (int, error) {
	if k := len(f.parts); k == 0 || len(f.parts[k-1].waits) > 0 {
		f.parts = append(f.parts, filePart{})
	}
	last := &f.parts[len(f.parts)-1]
	n, err := f.file.WriteAt(b, f.at)
	last.sum = crc32.Update(last.sum, castagnoli(), b[:n])
	last.bytes, f.at = last.bytes+int64(n), f.at+int64(n)
	return n, err
}

// WriteAt writes bytes that are left to this process.
func (f *dividedFile) WriteAt(b []byte, offset int64) (int, error) { return f.file.WriteAt(b, offset) }

// Leave leaves the next n bytes to others, which begin tells so, one by one.
func (f *dividedFile) Leave(n int64, begin ...func(file string, offset int64) (sum func() (uint32, error))) error {
	part := filePart{bytes: n}
	for _, b := range begin {
		part.waits = append(part.waits, b(f.path, f.at))
	}
	f.parts = append(f.parts, part)
	f.at += n
	return nil
}

// Close waits for the others, makes the file durable and records its entry.
func (f *dividedFile) Close() error {
	err := f.file.Sync()
	sum := uint32(0)
	for _, p := range f.parts {
		own, failed := p.checksum()
		err = errors.Join(err, failed)
		sum = joinedSum(sum, own, p.bytes)
		if err != nil {
			break
		}
	}
	if err = errors.Join(err, f.file.Close()); err == nil {
		f.folder.written = append(f.folder.written, fileEntry{f.name, f.at, fmt.Sprintf("%08x", sum)})
	}
	return err
}

// checksum waits for those who write the part. Each has the checksum of the part with zeros where the others' bytes are. Checksums are
// affine: their sum over GF(2) is that of the sum of these parts, if the checksum of zeros alone makes their number odd.
func (p *filePart) checksum() (sum uint32, err error) {
	sum = p.sum
	if n := len(p.waits); n > 0 && n%2 == 0 {
		sum = joinedSum(math.MaxUint32, math.MaxUint32, p.bytes)
	}
	for _, wait := range p.waits {
		own, err := wait()
		if err != nil {
			return 0, err
		}
		sum ^= own
	}
	return sum, nil
}

// joinedSum returns the checksum of bytes with sum a that are followed by n bytes with sum b. A CRC is what remains of a
// polynomial over GF(2) divided by another, so a is shifted by 8n places: multiplied by x to the power 8n.
func joinedSum(a, b uint32, n int64) uint32 {
	power := uint32(1 << 23) // x to the power 8: the highest bit is that of 1
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			a = remainderOf(a, power)
		}
		power = remainderOf(power, power)
	}
	return a ^ b
}

// remainderOf returns what remains of the product of two polynomials.
func remainderOf(a, b uint32) (product uint32) {
	for bit := uint32(1 << 31); bit != 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
		}
		low := b & 1
		if b >>= 1; low != 0 {
			b ^= crc32.Castagnoli
		}
	}
	return product
}
