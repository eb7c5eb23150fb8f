// Package nv binds NVIDIA's libraries without cgo: the driver (libcuda), the compiler
// NVRTC, cublasLt and NVML.
//
// Each library is a struct of procedures, filled from the library's symbols by the tags
// of its fields. All library calls go through these structs, so a fake that fills one
// with Go functions replaces the whole library.
//
//	driver, err := nv.OpenDriver(nv.Local())
//	err = driver.Check("cuInit", driver.Init(0))
//
// Arguments are machine words: integers, handles, and addresses of C memory or of
// pinned Go memory (Addr). If a library retains an address beyond the call, the
// memory's owner must live as long.
package nv

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"unsafe"
)

// Proc is a procedure of a library. The result is its status, 0 for success.
type Proc func(args ...uintptr) int32

// Library is an open shared library.
type Library interface {
	// Path returns the path that it was opened by.
	Path() string
	// Symbol returns a procedure, or nil if the library lacks it.
	Symbol(name string) Proc
}

// Fill sets the Proc fields of a struct from a library, by their tag
// `sym:"name"`. Names are alternatives, separated by commas; "?" as the last one
// makes the procedure optional.
func Fill(procs any, lib Library) error {
	v := reflect.ValueOf(procs).Elem()
	var missing []string
	for i := range v.NumField() {
		tag, ok := v.Type().Field(i).Tag.Lookup("sym")
		if !ok {
			continue
		}
		var proc Proc
		for _, name := range strings.Split(tag, ",") {
			if proc == nil && name != "?" {
				proc = lib.Symbol(name)
			}
		}
		if proc == nil && !strings.HasSuffix(tag, "?") {
			missing = append(missing, tag)
			continue
		}
		v.Field(i).Set(reflect.ValueOf(proc))
	}
	if missing != nil {
		return fmt.Errorf("%s has no %s; hint: install a newer version, or check that this is the right library", lib.Path(), strings.Join(missing, ", "))
	}
	return nil
}

// escape forces what p points to onto the heap, where its address is fixed.
var escape struct {
	never bool
	p     unsafe.Pointer
}

//go:noinline
func pin(p unsafe.Pointer) {
	if escape.never {
		escape.p = p
	}
}

// Addr returns the address of *p as an argument. The caller must keep p alive until the
// call has returned, by using it or with runtime.KeepAlive.
func Addr[T any](p *T) uintptr {
	pin(unsafe.Pointer(p))
	return uintptr(unsafe.Pointer(p))
}

// text calls f with the address of a C string.
func text(s string, f func(uintptr)) {
	b := append([]byte(s), 0)
	f(Addr(&b[0]))
	runtime.KeepAlive(b)
}

// goString copies a C string from memory outside Go's heap.
func goString(p uintptr) string {
	if p == 0 {
		return ""
	}
	start := *(*unsafe.Pointer)(unsafe.Pointer(&p))
	n := 0
	for *(*byte)(unsafe.Add(start, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(start), n))
}

// cString copies a C string from a buffer.
func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// errSystem says that no library can be opened on this system.
var errSystem = fmt.Errorf("CUDA is supported on Linux (x86-64 and arm64), in builds without the tag nocuda, and this is %s/%s; hint: on Windows, use WSL 2; elsewhere, use device: cpu", runtime.GOOS, runtime.GOARCH)

// openFirst opens the first library that can be opened and has all symbols of procs.
func (p Places) openFirst(procs any, what, hint string, paths []string) (Library, error) {
	var errs []error
	for _, path := range paths {
		lib, err := Open(path)
		if err == nil {
			if err = Fill(procs, lib); err == nil {
				return lib, nil
			}
		}
		if errors.Is(err, errSystem) {
			return nil, err
		}
		errs = append(errs, err)
	}
	if len(p.Empty) > 0 {
		hint = fmt.Sprintf("ATHANOR_CUDA_LIBS names %s, where there are no CUDA libraries; correct it, or %s", strings.Join(p.Empty, " and "), hint)
	}
	return nil, &MissingError{Library: what, Hint: hint, Err: errors.Join(errs...)}
}

// MissingError says that a library could not be opened.
type MissingError struct {
	Library string
	Hint    string
	Err     error // why, one line per place that was tried
}

func (e *MissingError) Error() string {
	first, _, _ := strings.Cut(e.Err.Error(), "\n")
	return fmt.Sprintf("%s was not found (%s); hint: %s", e.Library, first, e.Hint)
}

func (e *MissingError) Unwrap() error { return e.Err }
