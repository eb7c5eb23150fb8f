package data

import (
	"fmt"
	"io/fs"
	"syscall"
)

// inodeOf returns what the file system itself says about a file: where it is, and when anything of it last changed.
func inodeOf(info fs.FileInfo) string {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf("%d %d %d.%d", s.Dev, s.Ino, s.Ctim.Sec, s.Ctim.Nsec)
	}
	return ""
}
