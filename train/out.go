package train

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
)

// CheckOut finds, before text is read and plans are searched, what would stop a run
// from using its folder: it is not writable, another process trains there, or the
// folder to resume from is no checkpoint or, as far as the configuration tells,
// another run's. It creates no folder.
func CheckOut(spec *job.Spec) error {
	if err := spec.CheckResume(); err != nil {
		return err
	}
	if err := checkFolder(spec.Out); err != nil {
		return err
	}
	return checkSame(spec, func(here *identity) { here.configured(spec) })
}

// CheckOut makes those checks of the checkpoint or model folder to start from that
// need text and model.
func (s *Setup) CheckOut() error {
	if s.Graph.Model.LoRA != nil && s.Folder != "" && s.base == "" {
		_, err := folder.Fingerprint(s.Folder)
		return s.Spec.Fault("model", suggest.Add(err, "download the whole folder").Error())
	}
	if err := checkSame(s.Spec, func(here *identity) { here.prepared(s) }); err != nil {
		return err
	}
	return s.checkWeights()
}

// checkWeights checks that the folders that a new run starts from have all
// weights, in the model's shapes, and no others.
func (s *Setup) checkWeights() error {
	if _, _, err := s.Spec.Latest(checkpoint.Disk{}, checkpoint.Sizes); !errors.Is(err, checkpoint.ErrNone) || s.Folder == "" && !s.Spec.CarryOptimizer {
		return nil
	}
	if s.Folder == "" {
		_, _, err := s.openCarried() // which says what is missing
		return err
	}
	set, err := folder.OpenWeights(s.Folder)
	if errors.Is(err, fs.ErrNotExist) {
		return s.Spec.Fault("model", err.Error())
	}
	if err != nil {
		return err // which names the folder
	}
	from := &folder.Source{Base: set}
	defer from.Close()
	if from.New, err = newHead(s); err != nil {
		return err
	}
	if s.Adapter != "" {
		if from.Adapter, err = folder.OpenAdapter(s.Adapter); err != nil {
			return err
		}
	}
	if err := from.Check(s.Graph.Model, s.folderOf); err != nil {
		return err
	}
	if s.Spec.CarryOptimizer {
		ck, _, err := s.openCarried()
		if err != nil {
			return err
		}
		defer ck.Close()
	}
	return folder.WeightsError(s.Folder, folder.CheckTied(set, s.Model))
}

// checkSame refuses a checkpoint of another run. It ignores one that cannot be
// opened and was not named: resuming reads it completely and may skip it.
func checkSame(spec *job.Spec, know func(*identity)) error {
	path, _, err := spec.Latest(checkpoint.Disk{}, checkpoint.Sizes)
	if errors.Is(err, checkpoint.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	ck, err := checkpoint.Open(checkpoint.Disk{}, path)
	if err != nil && path != spec.Resume {
		return nil
	}
	if err != nil {
		return err
	}
	defer ck.Close()
	return belongs(spec, ck, path, know)
}

// checkFolder checks that a run's folder is unlocked, or could be created.
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
		err = machine.Writable(dir)
	}
	return outError(err)
}

// outError wraps an error of the run's folder; nil stays nil.
func outError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the run's folder: %w; hint: set `out` to a folder that can be written", err)
}
