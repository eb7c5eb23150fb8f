package cpu

import (
	"os"

	"golang.org/x/sys/unix"
)

// openDirect opens the file for direct I/O, if the file system supports it.
func openDirect(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_DIRECT, 0o600)
}

// allocate reserves the file's blocks, so that a full disk shows now and not in the
// middle of a run.
func allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS {
		return allocateByWriting(f, size)
	}
	return err
}
