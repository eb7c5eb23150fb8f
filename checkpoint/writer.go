package checkpoint

// Writing a checkpoint fast: training stands still meanwhile.
//
// Approach: the caller fills pieces of memory, while one goroutine writes the previous piece to the disk and
// another adds it to the checksum. So the bytes are read out, converted, checked and written at the same time,
// and that takes as long as the slowest of these, which should be the disk. Disk writes past the page cache
// where the system can (direct_linux.go): then there is next to nothing left to sync when a file is closed, and
// files may as well be synced in turn.
//
// Example: of a tensor of 10 MiB, pieces of 4, 4 and 2 MiB; while the first is written, the second is filled.
//
// Known weakness: on other systems the disk may not start writing before a file is synced.

import (
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"path/filepath"
	"sync"
	"unsafe"
)

const (
	pieceBytes = 4 << 20 // of one write, at most; larger ones are no faster
	pieces     = 3       // one is filled, one written, and one is ready for whichever is done first
	blockBytes = 4096    // pieces begin and end at multiples, as direct I/O requires
)

// piece is memory to be filled, and the outcome of its last write.
type piece struct {
	bytes []byte
	err   error
}

// folderWriter writes the files of one folder, one at a time, and records their manifest entries.
type folderWriter struct {
	fsys    FS
	root    string
	size    int // of a piece
	made    int // pieces
	free    chan piece
	written []fileEntry
}

// newFolderWriter returns a writer for about the given number of bytes: pieces need not be larger.
func newFolderWriter(fsys FS, root string, bytes int64) *folderWriter {
	size := min(pieceBytes, int(bytes/blockBytes+16)*blockBytes)
	return &folderWriter{fsys: fsys, root: root, size: size, free: make(chan piece, pieces)}
}

// take returns a piece to fill, a new one if none is free and there are not too many.
func (w *folderWriter) take() piece {
	if len(w.free) > 0 || w.made == pieces {
		return <-w.free
	}
	w.made++
	memory := make([]byte, w.size+blockBytes)
	return piece{bytes: memory[-uintptr(unsafe.Pointer(&memory[0]))%blockBytes:][:0:w.size]}
}

// create opens a file of the folder; name has slashes. Closing it makes its bytes durable and records its entry.
func (w *folderWriter) create(name string) (io.WriteCloser, error) {
	file, err := w.fsys.Create(filepath.Join(w.root, filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	f := &bookedFile{folder: w, name: name, file: file, hash: crc32.New(castagnoli()), full: make(chan piece, pieces)}
	f.ended.Go(f.drain)
	return f, nil
}

// file writes a small file in one call.
func (w *folderWriter) file(name string, text []byte) error {
	f, err := w.create(name)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// bookedFile is a file whose bytes are counted and checksummed.
type bookedFile struct {
	folder *folderWriter
	name   string
	file   File
	hash   hash.Hash32
	bytes  int64
	part   *piece     // being filled; nil: none
	full   chan piece // to be written
	ended  sync.WaitGroup
	err    error // drain's first error; to be read when drain has ended
}

// drain writes full pieces and gives them back.
func (f *bookedFile) drain() {
	for p := range f.full {
		if f.err == nil {
			var hashed sync.WaitGroup
			hashed.Go(func() { f.hash.Write(p.bytes) })
			_, f.err = f.file.Write(p.bytes)
			hashed.Wait()
		}
		f.folder.free <- piece{p.bytes[:0], f.err}
	}
}

// Write returns the error of an earlier piece.
func (f *bookedFile) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		if f.part == nil {
			p := f.folder.take()
			f.part = &p
		}
		if f.part.err != nil {
			return n, f.part.err
		}
		k := min(len(b), f.folder.size-len(f.part.bytes))
		f.part.bytes = append(f.part.bytes, b[:k]...)
		n, b = n+k, b[k:]
		f.bytes += int64(k)
		if len(f.part.bytes) == f.folder.size {
			f.pass()
		}
	}
	return n, nil
}

// pass hands over the piece that is being filled, to be written.
func (f *bookedFile) pass() {
	f.full <- *f.part
	f.part = nil
}

func (f *bookedFile) Close() error {
	if f.part != nil {
		f.pass()
	}
	close(f.full)
	f.ended.Wait()
	err := f.err
	if err == nil {
		err = f.file.Sync()
	}
	if closeErr := f.file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		f.folder.written = append(f.folder.written, fileEntry{f.name, f.bytes, fmt.Sprintf("%08x", f.hash.Sum32())})
	}
	return err
}
