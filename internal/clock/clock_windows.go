package clock

import (
	"syscall"
	"time"
	"unsafe"
)

var (
	kernel32  = syscall.NewLazyDLL("kernel32.dll")
	counter   = kernel32.NewProc("QueryPerformanceCounter")
	frequency = kernel32.NewProc("QueryPerformanceFrequency")

	start      = time.Now()
	first      = read(counter)
	nanosecond = 1e9 / float64(read(frequency)) // of one tick
)

// Now returns the time.
func Now() time.Time {
	return start.Add(time.Duration(float64(read(counter)-first) * nanosecond))
}

// read returns the number that a procedure writes. The procedures have existed since Windows XP and do not fail.
func read(p *syscall.LazyProc) (n int64) {
	_, _, _ = syscall.SyscallN(p.Addr(), uintptr(unsafe.Pointer(&n)))
	return n
}
