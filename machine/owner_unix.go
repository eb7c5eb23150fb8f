//go:build unix

package machine

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkOwn refuses a folder in a place that all users share if it is a link, or another user made it or may write
// to it: what the cache says is believed.
func checkOwn(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(s.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return &fs.PathError{Op: "use", Path: dir, Err: fmt.Errorf("another user made it or may write to it (%v); hint: remove it", info.Mode())}
	}
	return nil
}
