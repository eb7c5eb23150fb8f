//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package run

import (
	"fmt"
	"os"
	"syscall"
)

// diskOf names the disk that a path is on.
func diskOf(path string) string {
	st, err := os.Stat(existing(path))
	if err != nil {
		return path
	}
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprint(s.Dev)
	}
	return path
}
