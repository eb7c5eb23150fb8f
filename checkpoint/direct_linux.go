package checkpoint

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// create makes a file that is written without the page cache, which would take memory that the run may need and
// a core for copying, and would not begin to write until much has accumulated. Where the file system cannot do
// that, it is an ordinary file.
func create(path string) (File, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	return &directFile{file, setDirect(file, true) == nil}, nil
}

func setDirect(file *os.File, on bool) error {
	flags := 0
	if on {
		flags = unix.O_DIRECT
	}
	_, err := unix.FcntlInt(file.Fd(), unix.F_SETFL, flags)
	return err
}

// directFile writes whole blocks past the page cache until it gets bytes that are not whole blocks, which can only be the last.
type directFile struct {
	*os.File
	direct bool
}

// Write is fastest with pieces that begin and end at block boundaries, both in memory and in the file.
func (f *directFile) Write(p []byte) (n int, err error) {
	if whole := len(p) / blockBytes * blockBytes; f.direct && whole > 0 {
		n, err = f.File.Write(p[:whole])
		if err != nil && !errors.Is(err, unix.EINVAL) { // the memory or the file system does not meet the requirements
			return n, err
		}
	}
	if n == len(p) {
		return n, nil
	}
	if f.direct {
		f.direct = false
		if err := setDirect(f.File, false); err != nil {
			return n, err
		}
	}
	rest, err := f.File.Write(p[n:])
	return n + rest, err
}
