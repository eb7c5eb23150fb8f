//go:build unix

package machine

import (
	"os"
	"path/filepath"
	"testing"
)

// TestMakeOwn: a cache in a shared place is only believed if nobody else can have written it.
func TestMakeOwn(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own")
	for range 2 {
		if err := makeOwn(own); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	if err := makeOwn(link); err == nil {
		t.Error("a link, which may lead anywhere, was accepted")
	}
	if err := os.Chmod(own, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := makeOwn(own); err == nil {
		t.Error("a folder that all may write to was accepted")
	}
	if os.Getuid() == 0 {
		if err := os.Chmod(own, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(own, 12345, 12345); err != nil {
			t.Skip(err)
		}
		if err := makeOwn(own); err == nil {
			t.Error("another user's folder was accepted")
		}
	}
}
