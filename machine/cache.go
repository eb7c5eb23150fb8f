package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// CacheDir returns the folder for data that can be recomputed: the user's cache
// folder, or a per-user folder in the temporary folder where there is no home or it
// is not writable, as in containers.
func CacheDir() (string, error) {
	home, err := os.UserCacheDir()
	if err == nil {
		dir := filepath.Join(home, "athanor")
		if err = makeWritable(dir); err == nil {
			return dir, nil
		}
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("athanor-%d", os.Getuid()))
	if second := makeWritable(dir); second != nil {
		return "", fmt.Errorf("nowhere to keep what was measured and read: %w, %w; hint: set XDG_CACHE_HOME to a folder that can be written", err, second)
	}
	return dir, nil
}

// makeWritable creates a folder if it is absent, and checks that it is writable.
func makeWritable(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return Writable(dir)
}

// Writable checks a folder by creating a file in it: permission bits alone do not
// tell.
func Writable(dir string) error {
	f, err := os.CreateTemp(dir, ".athanor-try-*")
	var e *fs.PathError
	if errors.As(err, &e) { // omit the temporary file's name
		return fmt.Errorf("%s: %w", dir, e.Err)
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
