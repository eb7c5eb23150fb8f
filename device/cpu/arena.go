package cpu

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// mapArena allocates n bytes outside Go's heap, aligned to hugePage. All pages are
// resident when it returns, so memory cannot run out later and the first step is as
// fast as the others. It returns the arena, and the mapping to pass to unmapArena.
func mapArena(n int64) (arena, mapping []byte, err error) {
	arena, mapping, err = reserveSpace(n)
	if err != nil {
		return nil, nil, err
	}
	if err := commit(arena); err != nil {
		_ = unmapArena(mapping) // the first error is the one to report
		return nil, nil, err
	}
	return arena, mapping, nil
}

// reserveSpace reserves addresses for n bytes, aligned to hugePage, without memory.
func reserveSpace(n int64) (space, mapping []byte, err error) {
	mapping, err = reserve(n + hugePage)
	if err != nil {
		return nil, nil, fmt.Errorf("reserve addresses for %d bytes: %w", n, err)
	}
	skip := -uintptr(unsafe.Pointer(&mapping[0])) % hugePage
	return mapping[skip : skip+uintptr(n) : skip+uintptr(n)], mapping, nil
}

// commit makes a part of a space usable and resident.
func commit(part []byte) error {
	if len(part) == 0 {
		return nil
	}
	if err := provide(part); err != nil {
		return fmt.Errorf("commit %d bytes of memory: %w", len(part), err)
	}
	adviseHuge(part)
	populate(part)
	return nil
}

// decommit gives the memory of a part back, but not its addresses.
func decommit(part []byte) error {
	if err := withdraw(part); err != nil {
		return fmt.Errorf("give %d bytes of memory back: %w", len(part), err)
	}
	return nil
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
