package gemm

import (
	"syscall"
	"testing"
	"unsafe"
)

// hugeFloats returns memory on huge pages, like the arenas of a training run.
func hugeFloats(b *testing.B, n int) []float32 {
	const hugePage = 2 << 20
	size := (4*n/hugePage + 1) * hugePage
	m, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { syscall.Munmap(m) })
	syscall.Madvise(m, syscall.MADV_HUGEPAGE) // if refused, results are lower but valid
	return unsafe.Slice((*float32)(unsafe.Pointer(&m[0])), n)
}
