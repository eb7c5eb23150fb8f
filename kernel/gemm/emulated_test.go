//go:build !amd64

package gemm

func emulated() *isa { return nil }
