//go:build !amd64 && !arm64

package gemm

// sets returns the instruction sets that this processor has, the best first.
func sets() []*isa { return []*isa{&portable} }
