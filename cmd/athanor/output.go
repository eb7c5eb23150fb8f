package main

import (
	"bufio"
	"cmp"
	stdctx "context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/run"
)

// plannedOrExplained plans; where nothing fits it prints what JSON promises
// for that.
func (t *target) plannedOrExplained(c *context) (*planned, error) {
	p, err := t.makePlan(stdctx.Background(), c, run.DescribeMachine)
	var misfit *plan.Misfit
	if errors.As(err, &misfit) && c.json {
		return nil, errors.Join(c.print(plan.MisfitReport(misfit)), err)
	}
	return p, err
}

// wrote is the error of a write.
func wrote(_ int, err error) error { return err }

// fileHint is for a result that cannot be written.
const fileHint = "name a file in a folder that can be written"

// canWrite says of files that will be written, "" for none, whether they could be, before
// long work is done for them, and that they would not replace each other or what is read.
// It changes none; what is no plain file, such as a pipe, is left alone, since its other
// end would notice.
func canWrite(read []string, paths ...string) error {
	for i, path := range paths {
		if path == "" {
			continue
		}
		if slices.ContainsFunc(slices.Concat(read, paths[:i]), func(other string) bool { return samePlace(path, other) }) {
			return usageError{fmt.Sprintf("%s is read too, or written twice; hint: name another file", path)}
		}
		st, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = run.Writable(filepath.Dir(path))
		case err != nil:
			err = errors.Unwrap(err) // the path is told already
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

// samePlace reports whether two paths lead to one plain file, or would.
func samePlace(a, b string) bool {
	x, err := os.Stat(a)
	y, second := os.Stat(b)
	if err == nil && second == nil {
		return x.Mode().IsRegular() && os.SameFile(x, y)
	}
	return err != nil && filepath.Clean(a) == filepath.Clean(b)
}

// writeTo makes a file of what a function writes. On an error there is none; what
// was there before and is no plain file, such as a device, stays.
func writeTo(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return suggest.Add(err, fileHint)
	}
	w := bufio.NewWriter(f)
	st, err := f.Stat()
	if err = cmp.Or(err, write(w), w.Flush(), f.Close()); err != nil && st != nil && st.Mode().IsRegular() {
		os.Remove(path)
	}
	return err
}
