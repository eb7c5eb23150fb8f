package simd

import (
	"math/rand/v2"
	"reflect"
	"runtime/debug"
	"syscall"
	"testing"
	"unsafe"
)

// TestNothingBeyond puts slices between inaccessible pages, next to one of them.
func TestNothingBeyond(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var between [6][]byte
	for i := range between {
		between[i] = guarded(t)
	}
	r := rand.New(rand.NewPCG(13, 14))
	vectors(t, func(t *testing.T, v *Set) {
		both(v, v, func(name string, f, _ reflect.Value) {
			n := 0
			defer func() {
				if fault := recover(); fault != nil {
					t.Fatalf("%s of %d elements: %v", name, n, fault)
				}
			}()
			for ; n < 70; n++ {
				a, _ := arguments(r, f.Type(), n)
				begin := r.IntN(2) == 0
				for i := range a {
					switch x := a[i].Interface().(type) {
					case []float32:
						a[i] = reflect.ValueOf(placed(between[i], x, begin))
					case []uint16:
						a[i] = reflect.ValueOf(placed(between[i], x, begin))
					}
				}
				f.Call(a)
			}
		})
	})
}

// guarded returns a page between two inaccessible ones.
func guarded(t *testing.T) []byte {
	page := syscall.Getpagesize()
	all, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(all) })
	mid := all[page : 2*page]
	if err := syscall.Mprotect(mid, syscall.PROT_READ|syscall.PROT_WRITE); err != nil {
		t.Fatal(err)
	}
	return mid
}

// placed copies x to the beginning or the end of a page.
func placed[T Stored](page []byte, x []T, begin bool) []T {
	all := unsafe.Slice((*T)(unsafe.Pointer(&page[0])), len(page)/int(unsafe.Sizeof(T(0))))
	if !begin {
		all = all[len(all)-len(x):]
	}
	all = all[:len(x):len(x)]
	copy(all, x)
	return all
}
