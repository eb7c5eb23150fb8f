//go:build !linux || !(amd64 || arm64)

package nv

import (
	"fmt"
	"runtime"
)

// Open always fails: this package supports CUDA on Linux only.
func Open(path string) (Library, error) {
	return nil, fmt.Errorf("%s: CUDA is used on linux/amd64 and linux/arm64, this is %s/%s", path, runtime.GOOS, runtime.GOARCH)
}

func openGlobal(string) error { return nil }
