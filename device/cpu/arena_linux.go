package cpu

import "golang.org/x/sys/unix"

// adviseHuge requests 2 MiB pages, which gain 20 to 70 % of one core's memory
// bandwidth. If the kernel has none, small pages are used.
func adviseHuge(arena []byte) { _ = unix.Madvise(arena, unix.MADV_HUGEPAGE) }

// populateWrite makes the kernel (5.14 and later) provide the pages of part.
func populateWrite(part []byte) bool { return unix.Madvise(part, unix.MADV_POPULATE_WRITE) == nil }
