//go:build !linux

package gemm

// hasTiles tells whether products may use tile registers.
func hasTiles() bool { return false }
