//go:build unix

package cluster

import (
	"fmt"
	"os"
	"syscall"
)

// private returns an error unless a file is this user's and nobody else can read or write it.
func private(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); !ok || !info.Mode().IsRegular() || int(s.Uid) != os.Getuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s can be read or changed by other users, so it is not used; hint: all processes must run as one user", path)
	}
	return nil
}
