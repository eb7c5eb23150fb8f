package checkpoint

import (
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// readers are processes that read parts of files.
type readers struct {
	n     int
	blind bool
	lost  int // one that cannot read
	read  []int64
}

func (r *readers) Processes() int { return r.n }

func (r *readers) Sees(string) (bool, error) { return !r.blind, nil }

func (r *readers) Sum(process int, path string, offset, n int64) func() (uint32, error) {
	return func() (uint32, error) {
		if process == r.lost {
			return 0, errors.New("it is lost")
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		r.read[process] += n
		return crc32.Checksum(text[offset:][:n], castagnoli()), nil
	}
}

// TestParted: a checkpoint of which other processes read parts is whole, or damaged, as one process finds it, whatever part is
// damaged and whether or not one of them is lost; each reads its share of a large file, and none of what they do not see.
func TestParted(t *testing.T) {
	r := testkit.Rand(t)
	const bytes = 5*worthParting + 12345
	for range testkit.Count(2, 6, 30) {
		dir := t.TempDir()
		text := make([]byte, bytes)
		for i := range text {
			text[i] = byte(r.Uint32())
		}
		path := filepath.Join(dir, "large")
		others := &readers{n: 2 + r.IntN(6), blind: r.IntN(4) == 0, lost: r.IntN(8), read: make([]int64, 8)}
		entry := fileEntry{"large", bytes, sum(text)}
		if r.IntN(2) == 0 {
			text[r.IntN(bytes)] ^= 1 << r.IntN(8)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		want := checkFile(Disk{}, path, entry, Checksums)
		if got := checkFile(Parted{Others: others}, path, entry, Checksums); errors.Is(got, ErrCorrupt) != errors.Is(want, ErrCorrupt) || (got == nil) != (want == nil) {
			t.Errorf("%+v: %v, but by one process %v", others, got, want)
		}
		parts := int64(min(others.n, 5))
		for k, n := range others.read {
			share := bytes / parts
			if reads := k > 0 && int64(k) < parts && !others.blind && k != others.lost; reads != (n > 0) || n > share+1 || reads && n < share {
				t.Errorf("%+v: process %d of %d reads %d bytes", others, k, parts, n)
			}
		}
	}
}
