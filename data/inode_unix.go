//go:build unix

package data

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// inodeOf returns what the file system itself says about a file: where it is, and when anything of it last changed.
func inodeOf(f *os.File) (string, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return "", &os.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	return fmt.Sprintf("%d %d %d.%d", s.Dev, s.Ino, s.Ctim.Sec, s.Ctim.Nsec), nil
}
