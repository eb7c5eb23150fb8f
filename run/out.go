package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/config"
)

// CheckOut says before text is read and plans are searched what would keep a run out
// of its folder: that it cannot be written, that another process trains there, or that
// what it is to go on from is no checkpoint, or that of another run as far as the
// configuration tells. It makes no folder.
func CheckOut(c *config.Config) error {
	if err := checkResume(c); err != nil {
		return err
	}
	if err := checkFolder(c.Out); err != nil {
		return err
	}
	return checkSame(c, func(here *identity) { here.configured(c) })
}

// CheckOut says, of what the run is to go on from, what can be told only once text and
// model have been read.
func (s *Setup) CheckOut() error {
	if err := checkSame(s.Config, func(here *identity) { here.prepared(s) }); err != nil {
		return err
	}
	return s.checkWeights()
}

// checkWeights says of the model folder that a new run starts from whether the weights are
// there, all of them and of the model's shapes.
func (s *Setup) checkWeights() error {
	if _, _, err := latest(s.Config, checkpoint.Sizes); s.Folder == "" || !errors.Is(err, checkpoint.ErrNone) {
		return nil
	}
	set, err := openWeights(s.Folder)
	if errors.Is(err, fs.ErrNotExist) {
		return s.Config.Fault("model", err.Error())
	}
	if err != nil {
		return err // which names the folder
	}
	defer set.Close()
	for _, p := range s.Graph.Params {
		if err := readPart(set, p, 0, nil); err != nil {
			return inFolder(s.Folder, fmt.Errorf("parameter %s: %w", p.Name, err))
		}
	}
	return inFolder(s.Folder, checkTied(set, s.Model))
}

// checkSame refuses a checkpoint of another run. One that cannot be opened and was not
// asked for is left to the resume, which reads all of it and may pass over it.
func checkSame(c *config.Config, know func(*identity)) error {
	path, _, err := latest(c, checkpoint.Sizes)
	if errors.Is(err, checkpoint.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	ck, err := checkpoint.Open(checkpoint.Disk{}, path)
	if err != nil && path != c.Resume {
		return nil
	}
	if err != nil {
		return err
	}
	defer ck.Close()
	return belongs(c, ck, path, know)
}

// checkFolder says whether a run's folder is free, or could be made.
func checkFolder(dir string) error {
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
		err = Writable(dir)
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
