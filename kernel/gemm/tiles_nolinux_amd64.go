//go:build !linux

package gemm

// hasTiles reports whether products may use tile registers.
func hasTiles() bool { return false }
