package data

// What identifies a corpus without reading all of it.
//
// Approach: a file is known by what only the file system changes (its device, inode and time of last change of
// anything, which programs cannot set) and, where two files agree in all that, by samples of what is in it.
//
// Example: two projects with a corpus/a.txt of the same size, both dated 1970 as in a reproducible archive, have
// other paths, inodes and samples.
//
// Known weakness: systems without inodes (Windows) rely on path, size, time and samples.

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// sampleBytes is how much is read of the beginning, the middle and the end of a file.
const sampleBytes = 64 << 10

// Fingerprint returns a hash that differs between corpora of other files or other content.
func (c *Corpus) Fingerprint() (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, f := range c.files {
		if err := f.identify(h); err != nil {
			return sum, err
		}
	}
	h.Sum(sum[:0])
	return sum, nil
}

// identify writes what identifies a file.
func (f *File) identify(to io.Writer) error {
	path, err := filepath.Abs(f.Path)
	if err != nil {
		return err
	}
	in, err := os.Open(f.Path)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	inode, err := inodeOf(in)
	if err != nil {
		return err
	}
	fmt.Fprintf(to, "%q %d %d %v %v\n", path, info.Size(), info.ModTime().UnixNano(), f.Format, inode)
	sample := make([]byte, sampleBytes)
	size := info.Size()
	last := int64(-1)
	for _, at := range []int64{0, (size - sampleBytes) / 2, size - sampleBytes} {
		if at = max(at, 0); at == last {
			continue
		}
		last = at
		n, err := in.ReadAt(sample, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		to.Write(sample[:n])
	}
	return nil
}
