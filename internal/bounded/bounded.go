// Package bounded reads whole files that users name, up to a limit on their size,
// whatever the path turns out to be.
package bounded

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/athanor-llm/athanor/internal/size"
)

// Open opens a file to read it. It does not wait for somebody who would write into a pipe.
func Open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// ReadFile is os.ReadFile of at most the given number of bytes; a larger file is an
// error, and so is a pipe that nobody writes into. It does not rely on the file system's sizes: devices and pipes have none.
func ReadFile(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is larger than %s; hint: check that it is the right file", path, size.Format(most))
	}
	if info, bad := f.Stat(); err == nil && bad == nil && len(text) == 0 && info.Mode()&fs.ModeNamedPipe != 0 {
		err = fmt.Errorf("%s is a pipe that nobody writes into; hint: give a file", path)
	}
	return text, err
}
