package gemm

import (
	"sync"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"
)

// hasTiles reports whether this process may multiply bf16 on tile registers. Their state is large, so Linux saves it
// only for processes that request it (Documentation/arch/x86/xstate.rst). A granted request implies that XCR0 enables
// them.
var hasTiles = sync.OnceValue(func() bool {
	const requestPermission, tileData = 0x1023, 18
	if !cpu.X86.HasAMXTile || !cpu.X86.HasAMXBF16 {
		return false
	}
	_, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, requestPermission, tileData, 0)
	return errno == 0
})
