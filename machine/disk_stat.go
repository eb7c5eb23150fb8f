//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package machine

import (
	"fmt"
	"os"
	"syscall"
)

// diskOf identifies the disk that holds a path.
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
