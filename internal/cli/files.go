package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/internal/filelock"
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
// once it is complete and durable; on an error or a power cut what was there stays, and what
// killed processes have left of theirs goes. Anything else, such as a pipe, is written directly.
func WriteTo(path string, write func(io.Writer) error) error {
	st, err := os.Stat(path)
	if err == nil && !st.Mode().IsRegular() {
		return writeDirectly(path, write)
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // a link to a file stays a link
	}
	f, bad := createBeside(path)
	if bad != nil && err == nil { // the file can be written, its folder cannot
		return writeDirectly(path, write)
	}
	if bad != nil {
		return suggest.Add(bad, fileHint)
	}
	w := bufio.NewWriter(f)
	if err := cmp.Or(write(w), w.Flush(), f.Sync()); err != nil {
		return errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	if err := filelock.Publish(f, path); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return checkpoint.Disk{}.SyncDir(filepath.Dir(path))
}

func writeDirectly(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0o666)
	if err != nil {
		return suggest.Add(err, fileHint)
	}
	w := bufio.NewWriter(f)
	return cmp.Or(write(w), w.Flush(), f.Close())
}

// createBeside makes a file with a name of its own in a path's folder, locked as long as it is open, and removes
// unlocked ones for the same path: nobody writes those any more.
func createBeside(path string) (*os.File, error) {
	dir, name := filepath.Split(path)
	prefix := "." + name + "."
	list, _ := os.ReadDir(cmp.Or(dir, "."))
	for _, e := range list {
		if rest, ours := strings.CutPrefix(e.Name(), prefix); ours && ownSuffix.MatchString(rest) {
			removeAbandoned(filepath.Join(dir, e.Name()))
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("%s%016x", prefix, rand.Uint64())), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err == nil {
		_, _ = filelock.Try(f) // where there are no locks, none is found abandoned
	}
	return f, err
}

// ownSuffix is what createBeside puts after a name.
var ownSuffix = regexp.MustCompile("^[0-9a-f]{16}$")

// removeAbandoned removes a file unless it is locked, or was made a moment ago and may not be locked yet.
func removeAbandoned(path string) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	held, _ := filelock.Try(f)
	st, err := f.Stat()
	f.Close()
	if held && err == nil && time.Since(st.ModTime()) > time.Minute {
		os.Remove(path)
	}
}
