//go:build linux && (amd64 || arm64)

package mpi

import (
	"errors"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// open loads a library by its path, or by a name that the loader knows. Parts of Open MPI find its symbols by name, so
// all may see them.
func open(path string) (find func(string) (uintptr, error), err error) {
	h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, err // it includes the path
	}
	return func(name string) (uintptr, error) { return purego.Dlsym(h, name) }, nil
}

func procedureAt(at uintptr) procedure {
	return func(args ...uintptr) int32 {
		r, _, _ := purego.SyscallN(at, args...)
		return int32(r)
	}
}

// quiet sets variables in C's environment, where the user has not: libraries read them when they are loaded, and Go's
// environment is another.
func quiet() {
	h, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW)
	if err != nil {
		return // another C library; its users see what others see
	}
	setenv, err := purego.Dlsym(h, "setenv")
	if err != nil {
		return
	}
	for _, v := range quieted {
		name, value := append([]byte(v[0]), 0), append([]byte(v[1]), 0)
		purego.SyscallN(setenv, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&value[0])), 0)
		runtime.KeepAlive(name)
		runtime.KeepAlive(value)
	}
}

// signals is the number of signals that Linux has, and action the kernel's struct sigaction.
const signals = 64

type action struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// keepHandlers returns a function that gives signals the handlers back that they have now: Go's, which need what C's do
// not have, a stack of their own (SA_ONSTACK).
func keepHandlers() (restore func()) {
	var before [signals + 1]action
	for s := 1; s <= signals; s++ {
		_ = sigaction(s, nil, &before[s]) // what cannot be read is zero, and is not restored
	}
	return func() {
		for s := 1; s <= signals; s++ {
			var now action
			if sigaction(s, nil, &now) == nil && now != before[s] {
				_ = sigaction(s, &before[s], nil)
			}
		}
	}
}

func sigaction(signal int, set, get *action) error {
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(get)), unsafe.Sizeof(get.mask), 0, 0)
	if errno != 0 {
		return errors.New(errno.Error())
	}
	return nil
}
