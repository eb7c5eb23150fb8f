package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/config"
)

// CheckOut says before text is read and plans are searched what would keep a run out
// of its folder: that it cannot be written, that another process trains there, or that
// what it is to go on from is no checkpoint. It makes no folder.
func CheckOut(c *config.Config) error {
	if err := checkResume(c); err != nil {
		return err
	}
	dir := c.Out
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

// checkResume refuses a folder to go on from that has no state of a run.
func checkResume(c *config.Config) error {
	if c.Resume == "auto" || c.Resume == "never" || exists(filepath.Join(c.Resume, "state")) {
		return nil
	}
	return c.Fault("resume", c.Resume+" is no checkpoint of a training run; hint: auto, never, or a folder checkpoint-N; to start from a model's weights set model")
}

// outError is what is wrong with a run's folder, or nil.
func outError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the run's folder: %w; hint: set `out` to a folder that can be written", err)
}
