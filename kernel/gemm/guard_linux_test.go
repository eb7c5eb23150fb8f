package gemm

import (
	"runtime/debug"
	"syscall"
	"testing"
	"unsafe"

	"github.com/athanor-llm/athanor/kernel/pool"
)

// TestNoReadBeyond puts the operands at the very end of accessible memory.
func TestNoReadBeyond(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	everywhere(t, func(t *testing.T, x *isa) {
		r := seeded(t)
		p := pool.New(1)
		defer p.Close()
		e := newEngine(p, x)
		for range 60 {
			m, k := size(r, 160), size(r, 150)
			if r.IntN(3) == 0 { // in strips
				m, k = r.IntN(9), 16*r.IntN(9)
			}
			q := newProblem(r, Form(r.IntN(4)), m, size(r, 90), k, randomKinds(r))
			want := q.run(e)
			q.a, q.b = guarded(t, q.a), guarded(t, q.b)
			if q.init.Bias != nil {
				q.init.Bias = guarded(t, Matrix{Data: q.init.Bias}).Data
			}
			func() {
				defer func() {
					if fault := recover(); fault != nil {
						t.Fatalf("%s: %v", q, fault)
					}
				}()
				got := q.run(e)
				for i := range got {
					if got[i] != want[i] {
						t.Fatalf("%s: bits depend on where the operands are", q)
					}
				}
			}()
		}
	})
}

// guarded returns a copy of m that ends just before an inaccessible page.
func guarded(t *testing.T, m Matrix) Matrix {
	page := syscall.Getpagesize()
	bytes := 4*len(m.Data) + 2*len(m.Half)
	size := (bytes + page - 1) / page * page
	all, err := syscall.Mmap(-1, 0, size+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(all) })
	if err := syscall.Mprotect(all[size:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	begin := unsafe.Pointer(&all[size-bytes : size+1][0])
	if m.Half != nil {
		half := unsafe.Slice((*uint16)(begin), len(m.Half))
		copy(half, m.Half)
		return Matrix{Half: half, Stride: m.Stride}
	}
	data := unsafe.Slice((*float32)(begin), len(m.Data))
	copy(data, m.Data)
	return Matrix{Data: data, Stride: m.Stride}
}
