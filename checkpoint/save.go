package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/size"
)

// Store holds the checkpoints of one run.
type Store struct {
	Dir        string // the run folder; Save makes it
	Keep       int    // number of checkpoints to keep, the newest, besides the best; 0 keeps all
	ShardBytes int64  // size limit of one weights file; 0 never splits
	FS         FS     // nil: Disk
}

func (s *Store) fsys() FS {
	if s.FS == nil {
		return Disk{}
	}
	return s.FS
}

// Save writes a checkpoint and returns its path once it is durable. An error without a path leaves the older
// checkpoints unchanged. An error with a path means that the checkpoint is safe, but an older one could not be removed.
// If a whole checkpoint of the step exists, Save leaves it alone if its state is the same, and returns ErrExists if not.
func (s *Store) Save(snapshot *Snapshot) (string, error) {
	name := Folder(snapshot.Trainer.Step)
	final := filepath.Join(s.Dir, name)
	if err := s.save(snapshot, name); err != nil {
		return "", fmt.Errorf("checkpoint: saving %s: %w%s", final, err, saveHint(err, snapshot.Bytes()))
	}
	if err := s.prune(name, snapshot.Trainer.Best); err != nil {
		return final, fmt.Errorf("checkpoint: %s is saved, but older ones could not be removed: %w", final, err)
	}
	return final, nil
}

func (s *Store) save(snapshot *Snapshot, name string) error {
	if err := snapshot.check(); err != nil {
		return err
	}
	trainer, err := json.MarshalIndent(&snapshot.Trainer, "", "  ")
	if err != nil {
		return err
	}
	if err := makeDir(s.fsys(), s.Dir); err != nil {
		return err
	}
	if err := s.removeLeftovers(); err != nil {
		return err
	}
	final := filepath.Join(s.Dir, name)
	names, err := s.fsys().ReadDir(s.Dir)
	if err != nil {
		return err
	}
	exists, broken := slices.Contains(names, name), false
	if exists {
		if broken, err = s.judge(final, &snapshot.Trainer); err != nil {
			return err
		}
	}
	if !exists || broken {
		temp := filepath.Join(s.Dir, tempPrefix+name)
		if err := s.write(snapshot, trainer, temp); err != nil {
			s.fsys().RemoveAll(temp) // frees the space; if this fails, the next save does it
			return err
		}
		if broken {
			if err := s.fsys().Rename(final, filepath.Join(s.Dir, tempPrefix+"broken-"+name)); err != nil {
				return err
			}
		}
		if err := s.fsys().Rename(temp, final); err != nil {
			return err
		}
	}
	return s.fsys().SyncDir(s.Dir)
}

// judge inspects an existing checkpoint of the same name. It reports whether it is broken and must be replaced;
// one with the same state is accepted, and one with another state is ErrExists.
func (s *Store) judge(final string, trainer *Trainer) (broken bool, err error) {
	_, err = check(s.fsys(), final, Checksums)
	if errors.Is(err, ErrCorrupt) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	old, err := readTrainer(s.fsys(), final)
	if err != nil {
		return false, err
	}
	same, err := sameState(old, trainer)
	if err == nil && !same {
		err = fmt.Errorf("%w\nhint: the folder belongs to another run: resume that run, or choose another out", ErrExists)
	}
	return false, err
}

// sameState compares everything except the plan, which changes speed, never results, and which checkpoint is
// the best, which depends on the validation data.
func sameState(a, b *Trainer) (bool, error) {
	x, y := *a, *b
	x.Plan, y.Plan = nil, nil
	x.Best, y.Best = nil, nil
	left, err := json.Marshal(&x)
	if err != nil {
		return false, err
	}
	right, err := json.Marshal(&y)
	return bytes.Equal(left, right), err
}

// write makes the whole folder root, with every byte and name in it durable.
func (s *Store) write(snapshot *Snapshot, trainer []byte, root string) error {
	if err := s.fsys().Mkdir(root); err != nil {
		return err
	}
	w := newFolderWriter(s.fsys(), root, snapshot.Bytes())
	for _, name := range slices.Sorted(maps.Keys(snapshot.Files)) {
		if err := w.file(name, snapshot.Files[name]); err != nil {
			return err
		}
	}
	create := w.create
	if snapshot.Divided {
		create = func(name string) (io.WriteCloser, error) { return w.divide(s.Dir, name) }
	}
	metadata := map[string]string{"format": "pt"}
	base, limit := weightsBase, s.ShardBytes
	if snapshot.Adapter {
		base, limit = adapterBase, 0 // PEFT reads one file
	}
	if err := safetensors.WriteSet(create, base, limit, metadata, snapshot.Weights); err != nil {
		return err
	}
	if err := s.fsys().Mkdir(filepath.Join(root, stateDir)); err != nil {
		return err
	}
	for _, g := range snapshot.State {
		if err := safetensors.WriteSet(create, path.Join(stateDir, g.Name), 0, metadata, g.Tensors); err != nil {
			return err
		}
	}
	if err := s.fsys().SyncDir(filepath.Join(root, stateDir)); err != nil {
		return err
	}
	if err := w.file(trainerFile, trainer); err != nil {
		return err
	}
	text, err := json.MarshalIndent(manifest{manifestFormat, snapshot.Trainer.Step, w.written}, "", "  ")
	if err != nil {
		return err
	}
	if err := w.file(manifestFile, text); err != nil {
		return err
	}
	if err := w.file(doneFile, []byte(doneText(snapshot.Trainer.Step, text))); err != nil {
		return err
	}
	return s.fsys().SyncDir(root)
}

// removeLeftovers removes folders with temporary names: unfinished saves, and old checkpoints to be removed.
func (s *Store) removeLeftovers() error {
	names, err := s.fsys().ReadDir(s.Dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, tempPrefix) {
			if err := s.fsys().RemoveAll(filepath.Join(s.Dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// prune removes whole checkpoints until Keep are left, the one just saved and the newest others, and the best one. Broken
// ones stay for the user to inspect.
func (s *Store) prune(saved string, best *Best) error {
	steps, err := s.steps()
	if err != nil {
		return err
	}
	kept := 1
	for _, step := range steps {
		name := Folder(step)
		if name == saved || s.Keep <= 0 || best != nil && step == best.Step {
			continue
		}
		if _, err := check(s.fsys(), filepath.Join(s.Dir, name), Sizes); err != nil {
			continue
		}
		if kept < s.Keep {
			kept++
			continue
		}
		if err := s.fsys().Rename(filepath.Join(s.Dir, name), filepath.Join(s.Dir, tempPrefix+"old-"+name)); err != nil {
			return err
		}
	}
	return s.removeLeftovers()
}

// saveHint returns a hint for common failures.
func saveHint(err error, bytes int64) string {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Sprintf("\nhint: a checkpoint takes %s besides the older ones, which are untouched; "+
			"free some space or lower keep_checkpoints", size.Exact(bytes))
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return "\nhint: out must be a folder that you may write to; older checkpoints are untouched"
	}
	return ""
}
