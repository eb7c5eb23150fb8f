package checkpoint

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestJoinedSum: checksums of parts, of any lengths, put together are the checksum of the whole.
func TestJoinedSum(t *testing.T) {
	r := testkit.Rand(t)
	for range testkit.Count(20, 200, 5000) {
		text := make([]byte, r.IntN(5000))
		for i := range text {
			text[i] = byte(r.Uint32())
		}
		sum := uint32(0)
		for at := 0; at < len(text); {
			n := min(r.IntN(1000), len(text)-at)
			sum = joinedSum(sum, crc32.Checksum(text[at:at+n], castagnoli()), int64(n))
			at += n
		}
		if want := crc32.Checksum(text, castagnoli()); sum != want {
			t.Fatalf("%d bytes: %08x, want %08x", len(text), sum, want)
		}
	}
}

// interleaved are several who write a block of a file, each the bytes that it drew; the others begin when they are waited for.
func interleaved(r *rand.Rand, to safetensors.Divided, content []byte, dir string) error {
	owner, n := make([]int, len(content)), 1+r.IntN(5)
	for i := range owner {
		owner[i] = r.IntN(n)
	}
	var begin []func(string, int64) func() (uint32, error)
	for k := range n {
		begin = append(begin, func(file string, offset int64) func() (uint32, error) {
			write := func(to io.WriterAt) (uint32, error) {
				alone := make([]byte, len(content)) // and zeros
				for i := range content {
					if owner[i] != k {
						continue
					}
					alone[i] = content[i]
					if _, err := to.WriteAt(content[i:i+1], offset+int64(i)); err != nil {
						return 0, err
					}
				}
				return crc32.Checksum(alone, castagnoli()), nil
			}
			if k == 0 {
				sum, err := write(to)
				return func() (uint32, error) { return sum, err }
			}
			return func() (uint32, error) {
				f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
				if err != nil {
					return 0, err
				}
				defer f.Close()
				return write(f)
			}
		})
	}
	return to.Leave(int64(len(content)), begin...)
}

// halves is a tensor of which every second piece of 7 bytes is written by others, who are late: they begin when they are
// waited for; and the last 30 bytes by several who write single bytes of it.
func halves(r *rand.Rand, name string, whole []byte, dir string) safetensors.Tensor {
	data := func(w io.Writer) error {
		content := whole
		if _, divided := w.(safetensors.Divided); divided {
			content = whole[:len(whole)-30]
		}
		for i := 0; i*7 < len(content); i++ {
			part := content[i*7 : min(i*7+7, len(content))]
			d, divided := w.(safetensors.Divided)
			if !divided || i%2 == 0 {
				if _, err := w.Write(part); err != nil {
					return err
				}
				continue
			}
			err := d.Leave(int64(len(part)), func(file string, offset int64) func() (uint32, error) {
				return func() (uint32, error) {
					f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
					if err != nil {
						return 0, err
					}
					defer f.Close()
					_, err = f.WriteAt(part, offset)
					return crc32.Checksum(part, castagnoli()), err
				}
			})
			if err != nil {
				return err
			}
		}
		if d, divided := w.(safetensors.Divided); divided {
			return interleaved(r, d, whole[len(content):], dir)
		}
		return nil
	}
	return safetensors.Tensor{Info: safetensors.Info{Name: name, DType: safetensors.BF16, Shape: []int{len(whole) / 2}}, Data: data}
}

// TestDivided: a checkpoint of which others write parts is, file by file, the one that one process writes, and passes the
// check of every byte; if another fails, there is none.
func TestDivided(t *testing.T) {
	r := testkit.Rand(t)
	var content [3][]byte
	for i := range content {
		for range 2 * (50 + r.IntN(200)) {
			content[i] = append(content[i], byte(r.Uint32()))
		}
	}
	save := func(dir string, divided bool) *Store {
		s := &Store{Dir: dir, ShardBytes: 400}
		snap := &Snapshot{Divided: divided, Trainer: Trainer{Step: 3}, Files: map[string][]byte{"config.json": []byte("{}")}}
		for i, c := range content {
			snap.Weights = append(snap.Weights, halves(r, fmt.Sprint("w", i), c, dir))
		}
		snap.State = []Group{{Name: "m", Tensors: []safetensors.Tensor{halves(r, "w0", content[2], dir)}}}
		if _, err := s.Save(snap); err != nil {
			t.Fatal(err)
		}
		return s
	}
	one, several := t.TempDir(), t.TempDir()
	save(one, false)
	if _, _, err := save(several, true).Latest(Checksums); err != nil {
		t.Error(err)
	}
	err := filepath.WalkDir(one, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(one, path)
		a, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(several, name))
		if err == nil && !bytes.Equal(a, b) {
			t.Errorf("%s differs", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	lost := &Snapshot{Divided: true, Trainer: Trainer{Step: 4}, Weights: []safetensors.Tensor{halves(r, "w", content[0], t.TempDir())}}
	s := &Store{Dir: several}
	if _, err := s.Save(lost); err == nil {
		t.Error("a part that is not written is not missed")
	}
	if path, _, err := s.Latest(Checksums); err != nil || filepath.Base(path) != "checkpoint-3" {
		t.Errorf("%s, %v", path, err)
	}
}
