//go:build !linux || !(amd64 || arm64)

package nv

import (
	"fmt"
	"runtime"
)

// Open says that there is nothing to open: CUDA is for Linux here.
func Open(path string) (Library, error) {
	return nil, fmt.Errorf("%s: CUDA is used on linux/amd64 and linux/arm64, this is %s/%s", path, runtime.GOOS, runtime.GOARCH)
}

func openGlobal(string) error { return nil }
