//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package filelock

import (
	"errors"
	"os"
)

// Try returns an error: this system has no flock.
func Try(*os.File) (bool, error) { return false, errors.ErrUnsupported }

// Publish gives a file its name, and closes it.
func Publish(f *os.File, name string) error {
	return errors.Join(f.Close(), os.Rename(f.Name(), name))
}
