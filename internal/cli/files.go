package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/machine"
)

// Wrote returns the error of a write.
func Wrote(_ int, err error) error { return err }

// fileHint is the hint for a result that cannot be written.
const fileHint = "name a file in a folder that can be written"

// CanWrite checks, before long work, that the result files can be written and would
// not replace each other or an input. An empty path means none. It changes no file.
// It opens nothing but regular files: of a pipe, for example, the other end would
// notice.
func CanWrite(read []string, paths ...string) error {
	for i, path := range paths {
		if path == "" {
			continue
		}
		if slices.ContainsFunc(slices.Concat(read, paths[:i]), func(other string) bool { return samePlace(path, other) }) {
			return UsageError(fmt.Sprintf("%s is also an input, or is named for two outputs; hint: name another file", path))
		}
		st, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = machine.Writable(filepath.Dir(path))
		case err != nil:
			err = errors.Unwrap(err) // the message has the path already
		case st.IsDir():
			err = errors.New("it is a folder")
		case st.Mode().IsRegular():
			f, bad := os.OpenFile(path, os.O_WRONLY, 0)
			if err = errors.Unwrap(bad); bad == nil {
				err = f.Close()
			}
		}
		if err != nil {
			return fmt.Errorf("%s cannot be written: %w; hint: %s", path, err, fileHint)
		}
	}
	return nil
}

// samePlace reports whether two paths lead, or would lead, to the same regular
// file.
func samePlace(a, b string) bool {
	x, err := os.Stat(a)
	y, second := os.Stat(b)
	if err == nil && second == nil {
		return x.Mode().IsRegular() && os.SameFile(x, y)
	}
	return err != nil && filepath.Clean(a) == filepath.Clean(b)
}

// WriteTo has a function write a file. A regular file appears, or replaces an older one,
// once it is complete and durable; on an error or a power cut what was there stays. Anything
// else, such as a pipe, is written directly.
func WriteTo(path string, write func(io.Writer) error) error {
	to := path
	if st, err := os.Stat(path); err != nil || st.Mode().IsRegular() {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real // a link to a file stays a link
		}
		to = filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d", filepath.Base(path), os.Getpid()))
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil && to != path { // the file can be written, its folder cannot
		to = path
		f, err = os.OpenFile(to, os.O_WRONLY|os.O_TRUNC, 0o666)
	}
	if err != nil {
		return suggest.Add(err, fileHint)
	}
	w := bufio.NewWriter(f)
	err = cmp.Or(write(w), w.Flush())
	if to == path {
		return cmp.Or(err, f.Close())
	}
	if err = cmp.Or(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(to, path)
	}
	if err != nil {
		os.Remove(to)
		return err
	}
	return checkpoint.Disk{}.SyncDir(filepath.Dir(path))
}
