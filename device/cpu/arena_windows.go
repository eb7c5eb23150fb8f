package cpu

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// reserve reserves n bytes of address space.
func reserve(n int64) ([]byte, error) {
	at, err := windows.VirtualAlloc(0, uintptr(n), windows.MEM_RESERVE, windows.PAGE_NOACCESS)
	if err != nil {
		return nil, err
	}
	// The address is not one of Go's heap; vet takes the plain conversion for a mistake.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n), nil
}

// provide commits memory, or space in the page file, to a part of what was reserved.
func provide(part []byte) error {
	_, err := windows.VirtualAlloc(address(part), uintptr(len(part)), windows.MEM_COMMIT, windows.PAGE_READWRITE)
	return err
}

// withdraw takes a part's memory back.
func withdraw(part []byte) error {
	return windows.VirtualFree(address(part), uintptr(len(part)), windows.MEM_DECOMMIT)
}

func unmapArena(mapping []byte) error {
	return windows.VirtualFree(address(mapping), 0, windows.MEM_RELEASE)
}

func address(part []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(part))) }
