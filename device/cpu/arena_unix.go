//go:build unix

package cpu

import "golang.org/x/sys/unix"

// reserve maps n bytes that may not be used.
func reserve(n int64) ([]byte, error) {
	return unix.Mmap(-1, 0, int(n), unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// provide allows the use of a part of what was reserved.
func provide(part []byte) error { return unix.Mprotect(part, unix.PROT_READ|unix.PROT_WRITE) }

// withdraw takes a part's memory back and forbids its use.
func withdraw(part []byte) error {
	if err := unix.Madvise(part, unix.MADV_DONTNEED); err != nil {
		return err
	}
	return unix.Mprotect(part, unix.PROT_NONE)
}

func unmapArena(mapping []byte) error { return unix.Munmap(mapping) }
