//go:build unix

package hardware

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// inMemory lists file systems that keep files in memory, by the number that the system has for them.
var inMemory = map[int64]string{0x01021994: "tmpfs", 0x858458f6: "ramfs", 0x958458f6: "hugetlbfs"}

// InMemory returns the name of the file system that a path is, or would be, on, if it keeps files in memory; else "".
func InMemory(path string) string {
	s, err := fileSystem(path)
	if err != nil {
		return ""
	}
	return inMemory[int64(uint32(s.Type))]
}

// DiskSpace returns the free bytes, and all bytes, of the file system that a path is, or would be, on.
func DiskSpace(path string) (free, all int64, err error) {
	s, err := fileSystem(path)
	return int64(s.Bavail) * int64(s.Bsize), int64(s.Blocks) * int64(s.Bsize), err
}

// fileSystem describes the file system that a path is, or would be, on.
func fileSystem(path string) (s unix.Statfs_t, err error) {
	for {
		err = unix.Statfs(path, &s)
		if errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path) {
			path = filepath.Dir(path)
			continue
		}
		return s, err
	}
}
