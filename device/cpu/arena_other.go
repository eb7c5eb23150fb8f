//go:build !unix

package cpu

import "unsafe"

// mapArena allocates the arena on Go's heap on systems without mmap. Go does not move
// heap objects, so the alignment holds.
func mapArena(n int64) (arena, mapping []byte, err error) {
	mapping = make([]byte, n+hugePage)
	skip := -uintptr(unsafe.Pointer(&mapping[0])) % hugePage
	return mapping[skip : skip+uintptr(n) : skip+uintptr(n)], mapping, nil
}

// reserveSpace takes the memory at once: no backend that resizes arenas runs there.
func reserveSpace(n int64) (space, mapping []byte, err error) { return mapArena(n) }

func commit([]byte) error { return nil }

func decommit([]byte) error { return nil }

func unmapArena([]byte) error { return nil }
