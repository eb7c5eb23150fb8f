//go:build unix

package data

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"

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

// nodeOf returns what is the same for all paths to a file, and differs from other files'; "" if the file system does not say. Size and time
// tell files apart where it numbers all of them alike.
func nodeOf(info fs.FileInfo) string {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok || s.Ino == 0 {
		return ""
	}
	return fmt.Sprintf("%d %d %d %d", s.Dev, s.Ino, info.Size(), info.ModTime().UnixNano())
}
