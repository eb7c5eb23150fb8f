//go:build !linux

package kernel

import "testing"

func hugeFloats(_ *testing.B, n int) []float32 { return make([]float32, n) }
