//go:build unix

package cpu

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapArena reserves n bytes outside Go's heap, aligned to hugePage. All pages are
// resident when it returns, so memory cannot run out later and the first step is as
// fast as the others. It returns the arena, and the mapping to pass to unmapArena.
func mapArena(n int64) (arena, mapping []byte, err error) {
	mapping, err = unix.Mmap(-1, 0, int(n)+hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("mmap of %d bytes: %w", n, err)
	}
	skip := -uintptr(unsafe.Pointer(&mapping[0])) % hugePage
	arena = mapping[skip : skip+uintptr(n) : skip+uintptr(n)]
	adviseHuge(arena)
	populate(arena)
	return arena, mapping, nil
}

// populate touches all pages, each core a share: clearing memory dominates, and one
// core does not reach the machine's bandwidth.
func populate(arena []byte) {
	share := (len(arena)/runtime.GOMAXPROCS(0) + hugePage) &^ (hugePage - 1)
	var all sync.WaitGroup
	for len(arena) > 0 {
		part := arena[:min(share, len(arena))]
		arena = arena[len(part):]
		all.Go(func() {
			if !populateWrite(part) {
				for i := 0; i < len(part); i += pageSize {
					part[i] = 0
				}
			}
		})
	}
	all.Wait()
}

// reserveSpace reserves addresses for n bytes, a multiple of hugePage, without memory.
func reserveSpace(n int64) (space, mapping []byte, err error) {
	mapping, err = unix.Mmap(-1, 0, int(n)+hugePage, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("mmap of %d bytes without access: %w", n, err)
	}
	skip := -uintptr(unsafe.Pointer(&mapping[0])) % hugePage
	return mapping[skip : skip+uintptr(n) : skip+uintptr(n)], mapping, nil
}

// commit makes a part of a space usable and resident.
func commit(part []byte) error {
	if err := unix.Mprotect(part, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("mprotect of %d bytes: %w", len(part), err)
	}
	adviseHuge(part)
	populate(part)
	return nil
}

// decommit gives the memory of a part back.
func decommit(part []byte) error {
	err := unix.Madvise(part, unix.MADV_DONTNEED)
	if err == nil {
		err = unix.Mprotect(part, unix.PROT_NONE)
	}
	if err != nil {
		return fmt.Errorf("give %d bytes of memory back: %w", len(part), err)
	}
	return nil
}

func unmapArena(mapping []byte) error { return unix.Munmap(mapping) }
