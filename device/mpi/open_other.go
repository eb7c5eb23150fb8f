//go:build !linux || !(amd64 || arm64)

package mpi

import (
	"fmt"
	"runtime"
)

func open(path string) (func(string) (uintptr, error), error) {
	return nil, fmt.Errorf("%s: MPI is supported on Linux (x86-64 and arm64), and this is %s/%s", path, runtime.GOOS, runtime.GOARCH)
}

func procedureAt(uintptr) procedure { return nil }

func quiet() {}

func keepHandlers() (restore func()) { return func() {} }
