package hardware

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// DiskSpace returns the free bytes, for this user, and all bytes of the volume that a path is, or would be, on.
func DiskSpace(path string) (int64, int64, error) {
	for {
		name, err := windows.UTF16PtrFromString(path)
		if err != nil {
			return 0, 0, err
		}
		var free, all uint64
		err = windows.GetDiskFreeSpaceEx(name, &free, &all, nil)
		if errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path) {
			path = filepath.Dir(path)
			continue
		}
		return int64(free), int64(all), err
	}
}

// InMemory returns the name of the file system that a path is on, if it keeps files in memory: none does.
func InMemory(string) string { return "" }
