package checkpoint

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/athanor-llm/athanor/internal/crashfs"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// inWrites writes text in random parts, from none to more than two pieces.
func inWrites(w io.Writer, text []byte, random *rand.Rand) error {
	for len(text) > 0 {
		n := min(len(text), random.IntN([]int{2, 9 * blockBytes, 5 * pieceBytes / 2}[random.IntN(3)]))
		if k, err := w.Write(text[:n]); err != nil || k != n {
			return cmp.Or(err, io.ErrShortWrite)
		}
		text = text[n:]
	}
	return nil
}

func noise(n int, random *rand.Rand) []byte {
	text := make([]byte, n)
	for i := range text {
		text[i] = byte(random.Uint32())
	}
	return text
}

// Files of any length, written in any parts, have the bytes that were given, on the disk and in the manifest, one after the
// other in the same memory.
func TestWriter(t *testing.T) {
	seed := testkit.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	text := noise(3*pieceBytes+1, random)
	dir := t.TempDir()
	w := newFolderWriter(Disk{}, dir, pieceBytes)
	for _, n := range []int{0, 1, blockBytes, blockBytes + 1, pieceBytes - 1, pieceBytes, pieceBytes + blockBytes, len(text)} {
		f, err := w.create("file")
		if err == nil {
			err = errors.Join(inWrites(f, text[:n], random), f.Close())
		}
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		path, entry := filepath.Join(dir, "file"), w.written[len(w.written)-1]
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, text[:n]) {
			t.Errorf("%d bytes: others are read (%v)", n, err)
		}
		if want := (fileEntry{"file", int64(n), sum(text[:n])}); entry != want {
			t.Errorf("%d bytes: entry %v, want %v", n, entry, want)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// Whichever operation fails, at any piece, its error is returned, and never an entry.
func TestWriterFails(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	text := noise(5*pieceBytes/2, random)
	for operation := 1; ; operation++ {
		disk := crashfs.New()
		disk.FailOnce(operation, syscall.EIO)
		w := newFolderWriter(memFS{disk}, "/", pieceBytes)
		f, err := w.create("file")
		if err == nil {
			if err = inWrites(f, text, random); err != nil {
				_ = f.Close() // it may return the same error
			} else {
				err = f.Close()
			}
		}
		if disk.Ops() < operation {
			if err != nil || operation < 6 { // create, three writes, sync, close
				t.Errorf("%d operations: %v", operation-1, err)
			}
			return
		}
		if !errors.Is(err, syscall.EIO) || len(w.written) > 0 {
			t.Errorf("operation %d: %v, entries %v", operation, err, w.written)
		}
	}
}
