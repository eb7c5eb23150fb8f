package checkpoint

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"unsafe"
)

// Bytes that direct I/O cannot take are written all the same, and so is what follows them.
func TestDirect(t *testing.T) {
	memory := make([]byte, 5*blockBytes)
	for i := range memory {
		memory[i] = byte(i % 251)
	}
	aligned := int(-uintptr(unsafe.Pointer(&memory[0])) % blockBytes)
	for _, parts := range [][][2]int{ // from, bytes
		{{0, blockBytes}, {0, 2 * blockBytes}, {0, 17}},
		{{0, blockBytes + 1}, {0, blockBytes}},
		{{1, 2 * blockBytes}, {0, blockBytes}},
		{{0, 2 * blockBytes}, {1, blockBytes + 5}, {3, 2}},
		{{0, 0}, {0, blockBytes}},
	} {
		path := filepath.Join(t.TempDir(), "file")
		f, err := create(path)
		if err != nil {
			t.Fatal(err)
		}
		var want []byte
		for _, part := range parts {
			text := memory[aligned+part[0]:][:part[1]]
			want = append(want, text...)
			if n, err := f.Write(text); n != len(text) || err != nil {
				t.Errorf("%v: %v: %d bytes, %v", parts, part, n, err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v: other bytes (%v)", parts, err)
		}
	}
}
