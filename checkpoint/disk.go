package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
)

// FS is the file system that saving and loading use. Disk is the real one; tests use one that crashes.
type FS interface {
	Mkdir(path string) error          // one directory; fs.ErrExist if there is one
	Create(path string) (File, error) // a new file
	Open(path string) (Source, error) // a file for reading
	ReadDir(path string) ([]string, error)
	Rename(from, to string) error // within a directory; a file named to is replaced, a folder is not
	RemoveAll(path string) error  // no error if there is nothing
	SyncDir(path string) error    // makes created, renamed and removed names durable
}

// File is a file being written. Only synced data is guaranteed to survive a crash.
type File interface {
	io.WriteCloser
	Sync() error
}

// Source is a file being read.
type Source = safetensors.Source

// Disk is the operating system's file system.
type Disk struct{}

// Mkdir makes a directory with permissions 0755.
func (Disk) Mkdir(path string) error { return os.Mkdir(path, 0o755) }

// Create makes a file. It is an error if the file exists.
func (Disk) Create(path string) (File, error) {
	return create(path)
}

// Open opens a regular file.
func (Disk) Open(path string) (Source, error) { return safetensors.OpenSource(path) }

// ReadDir returns the names in a directory.
func (Disk) ReadDir(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

// Rename is os.Rename.
func (Disk) Rename(from, to string) error { return os.Rename(from, to) }

// RemoveAll is os.RemoveAll.
func (Disk) RemoveAll(path string) error { return os.RemoveAll(path) }

// SyncDir syncs a directory. Windows and some network file systems cannot; it then trusts their own guarantees
// (NTFS journals names).
func (Disk) SyncDir(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return errors.Join(err, d.Close())
}

// makeDir makes a directory and its missing parents, durably.
func makeDir(fsys FS, path string) error {
	if _, err := fsys.ReadDir(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(path)
	if parent == path {
		return fs.ErrNotExist
	}
	if err := makeDir(fsys, parent); err != nil {
		return err
	}
	if err := fsys.Mkdir(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return fsys.SyncDir(parent)
}

// readSmall reads a whole file that should be small; larger ones are errors.
func readSmall(fsys FS, path string) ([]byte, error) {
	source, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	if source.Size() > maxJSON {
		return nil, fmt.Errorf("%w: %s has %d bytes, the limit is %d", ErrCorrupt, filepath.Base(path), source.Size(), maxJSON)
	}
	text := make([]byte, source.Size())
	if n, err := source.ReadAt(text, 0); n < len(text) {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return text, nil
}

// ModelFiles reads those files of a Hugging Face folder that every checkpoint contains unchanged, as far as they exist.
// They include config.json, which the caller may replace.
func ModelFiles(dir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, name := range []string{
		"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
		"special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
	} {
		text, err := readSmall(Disk{}, filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files[name] = text
	}
	return files, nil
}
