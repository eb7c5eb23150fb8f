//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Try locks a file until it is closed or the process ends in any way. It reports whether it did, or another open file has
// the lock; an error means that there are no locks here.
func Try(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// Publish gives a locked file its name, and closes it: nobody sees it unlocked under its old one.
func Publish(f *os.File, name string) error {
	return errors.Join(os.Rename(f.Name(), name), f.Close())
}
