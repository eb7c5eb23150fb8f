package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
)

// Latest returns the path of the newest checkpoint that is whole as far as depth checks, and the errors of newer ones. If
// there is none, the error is ErrNone. A resume should ask for Checksums: it reads all the bytes anyway.
func (s *Store) Latest(depth Depth) (path string, passed []error, err error) {
	steps, err := s.steps()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, fmt.Errorf("checkpoint: %w", err)
	}
	for _, step := range steps {
		path := filepath.Join(s.Dir, Folder(step))
		m, err := check(s.fsys(), path, depth)
		if err == nil && m.Step != step {
			err = fmt.Errorf("%s: %w: the checkpoint is of step %d, so the folder was renamed", path, ErrCorrupt, m.Step)
		}
		if err == nil {
			return path, passed, nil
		}
		passed = append(passed, err)
	}
	return "", passed, fmt.Errorf("checkpoint: %w in %s", ErrNone, s.Dir)
}

// Check checks one checkpoint as thoroughly as Latest would, and returns its step.
func Check(fsys FS, path string, depth Depth) (step int64, err error) {
	m, err := check(fsys, path, depth)
	if err != nil {
		return 0, fmt.Errorf("checkpoint: %w", err)
	}
	return m.Step, nil
}

// CheckWeights verifies the weights of a folder that is a checkpoint, or a copy of what a model needs from one,
// against its manifest. Nothing is known about a folder without a manifest, which passes.
func CheckWeights(fsys FS, path string) error {
	m, err := readChain(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range m.Files {
		if strings.Contains(entry.Path, "/") || !strings.HasSuffix(entry.Path, ".safetensors") {
			continue // state, which is not needed, and files that people edit
		}
		if err := checkFile(fsys, filepath.Join(path, entry.Path), entry, Checksums); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", entry.Path, err)
		}
	}
	return nil
}

// steps lists the checkpoints by name, the newest first.
func (s *Store) steps() ([]int64, error) {
	names, err := s.fsys().ReadDir(s.Dir)
	if err != nil {
		return nil, err
	}
	var steps []int64
	for _, name := range names {
		if step, ok := stepOf(name); ok {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	slices.Reverse(steps)
	return steps, nil
}

// Checkpoint is an open checkpoint. Its tensors may be read concurrently.
type Checkpoint struct {
	Trainer Trainer
	Weights *safetensors.Set

	state map[string]*safetensors.Set
}

// Open opens a checkpoint after checking its chain and file sizes (Latest can check more).
func Open(fsys FS, path string) (*Checkpoint, error) {
	m, err := check(fsys, path, Sizes)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	c := &Checkpoint{state: map[string]*safetensors.Set{}}
	if err := c.open(fsys, path, m); err != nil {
		c.Close()
		return nil, fmt.Errorf("checkpoint: %s: %w", path, missingIsCorrupt(err))
	}
	return c, nil
}

func (c *Checkpoint) open(fsys FS, path string, m *manifest) error {
	trainer := slices.IndexFunc(m.Files, func(e fileEntry) bool { return e.Path == trainerFile })
	if trainer < 0 {
		return fmt.Errorf("%w: the manifest does not list %s", ErrCorrupt, trainerFile)
	}
	if err := checkFile(fsys, filepath.Join(path, trainerFile), m.Files[trainer], Checksums); err != nil {
		return fmt.Errorf("%s: %w", trainerFile, err)
	}
	t, err := readTrainer(fsys, path)
	if err != nil {
		return err
	}
	c.Trainer = *t
	base := weightsBase
	if slices.ContainsFunc(m.Files, func(e fileEntry) bool { return e.Path == adapterBase+".safetensors" }) {
		base = adapterBase
	}
	if c.Weights, err = openSet(fsys, path, base); err != nil {
		return err
	}
	for _, entry := range m.Files {
		group, inState := strings.CutPrefix(entry.Path, stateDir+"/")
		group, isTensors := strings.CutSuffix(group, ".safetensors")
		if !inState || !isTensors {
			continue
		}
		if c.state[group], err = openSet(fsys, filepath.Join(path, stateDir), group); err != nil {
			return err
		}
	}
	return nil
}

// State returns the tensors of a group, or nil if the checkpoint has no such group.
func (c *Checkpoint) State(group string) *safetensors.Set { return c.state[group] }

// Close closes all files.
func (c *Checkpoint) Close() error {
	var errs []error
	if c.Weights != nil {
		errs = append(errs, c.Weights.Close())
	}
	for _, set := range c.state {
		if set != nil {
			errs = append(errs, set.Close())
		}
	}
	return errors.Join(errs...)
}

func openSet(fsys FS, dir, base string) (*safetensors.Set, error) {
	return safetensors.OpenSet(func(name string) (Source, error) { return fsys.Open(filepath.Join(dir, name)) }, base)
}

func readTrainer(fsys FS, path string) (*Trainer, error) {
	text, err := readSmall(fsys, filepath.Join(path, trainerFile))
	if err != nil {
		return nil, err
	}
	var t Trainer
	if err := json.Unmarshal(text, &t); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, trainerFile, err)
	}
	return &t, nil
}
