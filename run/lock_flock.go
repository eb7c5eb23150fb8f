//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockFolder keeps other processes from training in a run's folder until the
// file is closed, or the process ends in whatever way. The file stays: if it
// were removed, two processes could hold locks on two files of that name. File
// systems that have no locks are used without.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, outError(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		f.Close()
		return nil, fmt.Errorf("%s: another process trains there; hint: wait for it or end it, or set `out` to another folder", dir)
	}
	return f, nil
}
