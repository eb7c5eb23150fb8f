package data

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapFile maps size > 0 bytes of a file, read only. The pages are those of the file
// cache; nothing is copied. A file that is mapped cannot be replaced or removed.
func mapFile(in *os.File, size int64) (content []byte, unmap func() error, err error) {
	mapping, err := windows.CreateFileMapping(windows.Handle(in.Fd()), nil, windows.PAGE_READONLY, 0, 0, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("mapping %d bytes: %w", size, err)
	}
	defer windows.CloseHandle(mapping) // the view keeps it
	at, err := windows.MapViewOfFile(mapping, windows.FILE_MAP_READ, 0, 0, uintptr(size))
	if err != nil {
		return nil, nil, fmt.Errorf("mapping %d bytes: %w", size, err)
	}
	// The address is not one of Go's heap; vet takes the plain conversion for a mistake.
	content = unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), size)
	return content, func() error { return windows.UnmapViewOfFile(at) }, nil
}
