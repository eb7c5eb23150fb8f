package bounded_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/bounded"
)

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("athanor"), 0o644); err != nil {
		t.Fatal(err)
	}
	if text, err := bounded.ReadFile(path, 7); string(text) != "athanor" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := bounded.ReadFile(path, 6); err == nil || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("a byte too many: %v", err)
	}
	if _, err := bounded.ReadFile(path+".absent", 6); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := os.Stat("/dev/zero"); err == nil { // a file without an end
		if _, err := bounded.ReadFile("/dev/zero", 1<<20); err == nil {
			t.Error("all of /dev/zero was read")
		}
	}
}
