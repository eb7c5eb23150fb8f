//go:build unix

package hardware

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// FreeDisk returns the free bytes of the file system that a path is, or would be, on.
func FreeDisk(path string) (int64, error) {
	var s unix.Statfs_t
	for {
		err := unix.Statfs(path, &s)
		if errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path) {
			path = filepath.Dir(path)
			continue
		}
		return int64(s.Bavail) * int64(s.Bsize), err
	}
}
