//go:build unix

package data

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps size > 0 bytes of a file, read only. The pages are those of the page
// cache; nothing is copied.
func mapFile(in *os.File, size int64) (content []byte, unmap func() error, err error) {
	if int64(int(size)) != size {
		return nil, nil, fmt.Errorf("%d bytes do not fit in the address space", size)
	}
	content, err = unix.Mmap(int(in.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("mapping %d bytes: %w", size, err)
	}
	return content, func() error { return unix.Munmap(content) }, nil
}
