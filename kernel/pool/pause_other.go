//go:build !amd64 && !arm64

package pool

// pause does nothing: the spin loops are correct without a hint.
func pause() {}
