//go:build !amd64 && !arm64

package simd

// Sets returns the tables that this processor can use, the best first.
func Sets() []*Set { return []*Set{Portable()} }
