//go:build linux

package cuda

// For tests in the package's outside, which may use what is built on it.
var (
	Machine = machine
	Hollow  = hollow
	OnGPU   = onGPU
)
