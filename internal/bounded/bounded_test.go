package bounded_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

// TestNoFile: what is no file is an error with one hint, whatever it is instead, and what the system says of it stays known.
func TestNoFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("circle", filepath.Join(dir, "circle")); err != nil {
		t.Skip(err)
	}
	socket, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Skip(err)
	}
	defer socket.Close()
	for _, path := range []string{dir, dir + "/circle", dir + "/s", dir + "/" + strings.Repeat("x", 300), "/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/proc/self/mem", "/proc/self"} {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue // on this system
		}
		text, err := bounded.ReadFile(path, 1<<20)
		if err == nil || strings.Count(err.Error(), "hint: ") != 1 {
			t.Errorf("%s: %d bytes, %v", path, len(text), err)
		}
	}
	why := errors.New("other")
	for _, err := range []error{nil, why, fs.ErrNotExist} {
		if got := bounded.Explain(err); got != err {
			t.Errorf("%v: %v", err, got)
		}
	}
	if err := bounded.Explain(&os.PathError{Op: "read", Path: "x", Err: syscall.EISDIR}); !errors.Is(err, syscall.EISDIR) {
		t.Error(err)
	}
}
