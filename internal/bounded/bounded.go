// Package bounded reads whole files that users name, up to a limit on their size,
// whatever the path turns out to be.
package bounded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/internal/suggest"
)

// Open opens a file to read it. It does not wait for somebody who would write into a pipe.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	return f, Explain(err)
}

// hints say what to do where the system refuses to open or to read what is named as a file.
var hints = []struct {
	why  error
	hint string
}{
	{syscall.EISDIR, "it is a folder; give a file"},
	{syscall.ELOOP, "its links lead to each other; give a file"},
	{syscall.ENXIO, "it is a socket, or a device that is not there; give a file"},
	{syscall.EACCES, "allow this user to read it"},
	{syscall.ENAMETOOLONG, "give a shorter path"},
	{syscall.EIO, "check that it is a file, and the disk that it is on"},
}

// Explain adds what to do to an error of the system that says nothing else.
func Explain(err error) error {
	for _, h := range hints {
		if errors.Is(err, h.why) {
			return suggest.Add(err, h.hint)
		}
	}
	return err
}

// ReadFile is os.ReadFile of at most the given number of bytes; a larger file is an
// error, and so is a pipe that nobody writes into. It does not rely on the file system's sizes: devices and pipes have none.
func ReadFile(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Mode()&fs.ModeCharDevice != 0 {
		err = fmt.Errorf("%s is a device; hint: give a file", path)
	}
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is larger than %s; hint: check that it is the right file", path, size.Format(most))
	}
	if err == nil && len(text) == 0 && info.Mode()&fs.ModeNamedPipe != 0 {
		err = fmt.Errorf("%s is a pipe that nobody writes into; hint: give a file", path)
	}
	return text, Explain(err)
}
