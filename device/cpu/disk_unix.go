//go:build unix

package cpu

import (
	"errors"
	"os"
)

// openHidden creates a file and removes its name. It reports whether it is opened for
// direct I/O.
func openHidden(path string) (f *os.File, direct bool, err error) {
	f, err = tryDirect(path)
	if direct = err == nil; !direct {
		if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
			return nil, false, err
		}
	}
	if err := os.Remove(path); err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	return f, direct, nil
}

// tryDirect opens the file for direct I/O and writes a page, since some file systems
// only fail then.
func tryDirect(path string) (*os.File, error) {
	f, err := openDirect(path)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(alignedBytes(pageSize), 0); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
