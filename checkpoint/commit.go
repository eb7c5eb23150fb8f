package checkpoint

// Writing other things as checkpoints are written: under a temporary name, synced, then renamed, so that a name
// that is there stands for something whole, also after a power cut.

import (
	"errors"
	"io"
	"path/filepath"
)

// WriteFile replaces a small file. When it returns, the new content is durable; on errors, the old one is there.
func WriteFile(fsys FS, path string, text []byte) error {
	dir, name := filepath.Split(path)
	dir = filepath.Clean(dir)
	temp := filepath.Join(dir, tempPrefix+name)
	if err := fsys.RemoveAll(temp); err != nil { // of a process that was killed
		return err
	}
	err := writeSynced(fsys, temp, text)
	if err == nil {
		err = fsys.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, fsys.RemoveAll(temp))
	}
	return fsys.SyncDir(dir)
}

func writeSynced(fsys FS, path string, text []byte) error {
	f, err := fsys.Create(path)
	if err != nil {
		return err
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Create opens a new file of a folder; closing it makes its bytes durable.
type Create = func(name string) (io.WriteCloser, error)

// CreateFile makes a file of a folder with its content.
func CreateFile(create Create, name string, text []byte) error {
	f, err := create(name)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// WriteFolder makes a folder whose files fill creates, some bytes in all. It appears, durable, when it is
// complete; its name must not exist. What a killed call for the same folder left behind is removed.
func WriteFolder(fsys FS, path string, bytes int64, fill func(Create) error) error {
	dir, name := filepath.Split(filepath.Clean(path))
	dir = filepath.Clean(dir)
	temp := filepath.Join(dir, tempPrefix+name)
	err := fsys.RemoveAll(temp)
	if err == nil {
		err = fsys.Mkdir(temp)
	}
	if err != nil {
		return err
	}
	if err = fill(newFolderWriter(fsys, temp, bytes).create); err == nil {
		err = fsys.SyncDir(temp)
	}
	if err == nil {
		err = fsys.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, fsys.RemoveAll(temp))
	}
	return fsys.SyncDir(dir)
}
