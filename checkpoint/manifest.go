package checkpoint

// The chain of trust: DONE holds the checksum of manifest.json, which holds size and checksum of every other file.
//
// The checksum is CRC-32C: it finds every burst of errors up to 32 bits, misses other damage once in 2^32, and runs at
// memory speed on every machine, so that checking costs no more than reading.

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
)

const manifestFormat = 1

type manifest struct {
	Format int         `json:"format"`
	Step   int64       `json:"step"`
	Files  []fileEntry `json:"files"`
}

// fileEntry has the size and checksum of one file; Path is relative to the checkpoint, with slashes.
type fileEntry struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	CRC32C string `json:"crc32c"` // eight hexadecimal digits
}

// Depth says how thoroughly files on disk are checked.
type Depth int

const (
	// Sizes checks the chain, and that each file exists with its full length. It costs almost nothing.
	Sizes Depth = iota
	// Checksums also reads every byte.
	Checksums
)

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func sum(text []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(text, castagnoli())) }

// doneText returns the content of the DONE marker.
func doneText(step int64, manifestText []byte) string {
	return fmt.Sprintf("step %d\nmanifest crc32c %s\n", step, sum(manifestText))
}

// check verifies the chain and returns the manifest. If a file is damaged, the error names it and wraps ErrCorrupt.
func check(fsys FS, path string, depth Depth) (*manifest, error) {
	m, err := readChain(fsys, path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, missingIsCorrupt(err))
	}
	for _, entry := range m.Files {
		if err := checkFile(fsys, filepath.Join(path, filepath.FromSlash(entry.Path)), entry, depth); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, entry.Path, missingIsCorrupt(err))
		}
	}
	return m, nil
}

// readChain reads what vouches for the files.
func readChain(fsys FS, path string) (*manifest, error) {
	done, err := readSmall(fsys, filepath.Join(path, doneFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("saving it never finished, there is no %s: %w", doneFile, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	text, err := readSmall(fsys, filepath.Join(path, manifestFile))
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(text, string(done))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return m, nil
}

func parseManifest(text []byte, done string) (*manifest, error) {
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", manifestFile, err)
	}
	switch {
	case done != doneText(m.Step, text):
		return nil, fmt.Errorf("%s and %s do not belong together, or one is damaged", doneFile, manifestFile)
	case m.Format != manifestFormat:
		return nil, fmt.Errorf("%s has format %d, but this version of Athanor reads format %d", manifestFile, m.Format, manifestFormat)
	}
	for _, entry := range m.Files {
		if !filepath.IsLocal(filepath.FromSlash(entry.Path)) {
			return nil, fmt.Errorf("%s names %.80q, which is not inside the folder", manifestFile, entry.Path)
		}
	}
	return &m, nil
}

func checkFile(fsys FS, path string, entry fileEntry, depth Depth) error {
	source, err := fsys.Open(path)
	if err != nil {
		return err
	}
	defer source.Close()
	if source.Size() != entry.Bytes {
		return fmt.Errorf("%w: it has %d bytes, but %d were written", ErrCorrupt, source.Size(), entry.Bytes)
	}
	if depth == Sizes {
		return nil
	}
	var whole uint32
	if p, ok := fsys.(Parted); ok {
		whole, err = p.sum(path, source)
	} else {
		whole, err = sumOf(source, 0, source.Size())
	}
	if err != nil {
		return err
	}
	if got := fmt.Sprintf("%08x", whole); got != entry.CRC32C {
		return fmt.Errorf("%w: its checksum is %s, but %s was written: the file was damaged or edited", ErrCorrupt, got, entry.CRC32C)
	}
	return nil
}

// sumOf returns the checksum of n bytes.
func sumOf(source Source, offset, n int64) (uint32, error) {
	hash := crc32.New(castagnoli())
	_, err := io.CopyBuffer(hash, io.NewSectionReader(source, offset, n), make([]byte, min(1<<20, 1+n)))
	return hash.Sum32(), err
}

// missingIsCorrupt makes the error of a missing file wrap ErrCorrupt.
func missingIsCorrupt(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}
