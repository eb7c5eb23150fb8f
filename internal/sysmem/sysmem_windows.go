package sysmem

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// memoryStatus is MEMORYSTATUSEX.
type memoryStatus struct {
	length, load              uint32
	total, available          uint64
	totalCommit, canCommit    uint64
	totalVirtual, freeVirtual uint64
	availableExtended         uint64
}

// system calls GlobalMemoryStatusEx. Memory is promised when it is committed, not when it
// is touched, so an arena needs both.
func system() (Info, error) {
	s := memoryStatus{length: uint32(unsafe.Sizeof(memoryStatus{}))}
	call := windows.NewLazySystemDLL("kernel32.dll").NewProc("GlobalMemoryStatusEx")
	if ok, _, err := call.Call(uintptr(unsafe.Pointer(&s))); ok == 0 {
		return Info{}, fmt.Errorf("GlobalMemoryStatusEx: %w", err)
	}
	return Info{Total: int64(s.total), Available: int64(min(s.available, s.canCommit))}, nil
}

func systemCores() float64 { return 0 }

func systemAddresses() int64 { return 0 }

func systemMapped() int64 { return 0 }
