package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// CheckOut says before text is read and plans are searched what would keep a run out
// of its folder: that it cannot be written, or that another process trains there.
// It makes no folder.
func CheckOut(dir string) error {
	_, err := os.Stat(dir)
	if err == nil {
		lock, err := lockFolder(dir)
		if lock != nil {
			err = errors.Join(err, lock.Close())
		}
		return err
	}
	for errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		_, err = os.Stat(dir)
	}
	if err == nil {
		err = writable(dir)
	}
	return outError(err)
}

// outError is what is wrong with a run's folder, or nil.
func outError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the run's folder: %w; hint: set `out` to a folder that can be written", err)
}
