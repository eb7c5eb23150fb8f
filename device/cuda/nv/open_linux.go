//go:build linux && (amd64 || arm64) && !nocuda

package nv

import "github.com/ebitengine/purego"

type shared struct {
	path   string
	handle uintptr
}

// Open opens a shared library by path, or by name through the loader.
func Open(path string) (Library, error) {
	h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err // the message includes the path
	}
	return &shared{path, h}, nil
}

// openGlobal opens a library whose symbols others resolve by name.
func openGlobal(path string) error {
	_, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	return err
}

func (l *shared) Path() string { return l.path }

func (l *shared) Symbol(name string) Proc {
	fn, err := purego.Dlsym(l.handle, name)
	if err != nil || fn == 0 {
		return nil
	}
	return func(args ...uintptr) int32 {
		r, _, _ := purego.SyscallN(fn, args...)
		return int32(r)
	}
}
