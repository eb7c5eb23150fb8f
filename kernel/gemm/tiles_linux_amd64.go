package gemm

import (
	"sync"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"
)

// hasTiles tells whether the processor multiplies bf16 on tile registers and this process may: their state is large,
// so Linux saves it only for processes that asked (Documentation/arch/x86/xstate.rst). That it allows them includes that
// it switched them on, in XCR0.
var hasTiles = sync.OnceValue(func() bool {
	const requestPermission, tileData = 0x1023, 18
	if !cpu.X86.HasAMXTile || !cpu.X86.HasAMXBF16 {
		return false
	}
	_, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, requestPermission, tileData, 0)
	return errno == 0
})
