package cuda

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/device/cuda/nv"
)

// code is what a device compiled and loaded of its kernels.
type code struct {
	driver    *nv.Driver
	cache     *kernels.Cache
	modules   map[kernels.Unit]uintptr
	functions map[functionKey]function
}

type functionKey struct {
	unit kernels.Unit
	name string
}

// function is a kernel of a loaded module.
type function struct {
	handle uintptr
	shared int // the most dynamic shared memory that a launch of it may have
}

// compile compiles all units that are not loaded, on all cores.
func (k *code) compile(works [][]work, arch string) (map[kernels.Unit][]byte, error) {
	codes := map[kernels.Unit][]byte{}
	var units []kernels.Unit
	for _, list := range works {
		for _, l := range launches(list) {
			if k.modules[l.unit] == 0 && !slices.Contains(units, l.unit) {
				units = append(units, l.unit)
			}
		}
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var first error
	tokens := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, u := range units {
		all.Go(func() {
			tokens <- struct{}{}
			defer func() { <-tokens }()
			code, err := k.cache.Load(u, arch)
			mu.Lock()
			defer mu.Unlock()
			if codes[u] = code; err != nil && first == nil {
				first = err
			}
		})
	}
	all.Wait()
	return codes, first
}

// load passes the code to the driver, on the worker.
func (k *code) load(codes map[kernels.Unit][]byte) error {
	for u, code := range codes {
		m, err := k.driver.Word("cuModuleLoadData", k.driver.ModuleLoadData, nv.Addr(&code[0]))
		runtime.KeepAlive(code)
		if err != nil {
			return fmt.Errorf("kernel %s: %w", u, err)
		}
		k.modules[u] = m
	}
	return nil
}

// unload releases all modules, on the worker.
func (k *code) unload() {
	for _, m := range k.modules {
		k.driver.ModuleUnload(m)
	}
}

// function returns a launch's kernel, allowed the shared memory that the launch asks for. The limit
// belongs to the function, which earlier prepared launches share, so it is only ever raised. It is set
// for all that use any, since the default of 48 KiB includes what the kernel declares itself.
func (k *code) function(l *launch) (uintptr, error) {
	key := functionKey{l.unit, l.kernel}
	f := k.functions[key]
	if f.handle == 0 {
		handle, err := k.driver.Function(k.modules[l.unit], l.kernel)
		if err != nil {
			return 0, err
		}
		f.handle = handle
	}
	if l.shared > f.shared {
		v := k.driver
		if err := v.Check("cuFuncSetAttribute", v.FuncSetAttribute(f.handle, nv.FuncSharedMemory, uintptr(l.shared))); err != nil {
			return 0, fmt.Errorf("kernel %s: %w", l.kernel, err)
		}
		f.shared = l.shared
	}
	k.functions[key] = f
	return f.handle, nil
}

// parameters is what a launch points to: the arguments and their description for the
// driver.
type parameters struct {
	args  args
	size  uint64
	extra [5]uintptr
}

// step builds a launch on a stream.
func (k *code) step(l *launch, stream uintptr) (step, error) {
	v := k.driver
	fn, err := k.function(l)
	if err != nil {
		return step{}, err
	}
	p := &parameters{args: l.args, size: uint64(argsBytes)}
	p.extra = [5]uintptr{nv.ParamBuffer, nv.Addr(&p.args), nv.ParamSize, nv.Addr(&p.size), 0}
	return step{
		proc: v.LaunchKernel, keep: p,
		args: []uintptr{fn, uintptr(l.grid[0]), uintptr(l.grid[1]), uintptr(l.grid[2]), uintptr(l.block), 1, 1,
			uintptr(l.shared), stream, 0, nv.Addr(&p.extra)},
		explain: func(code int32) error {
			return fmt.Errorf("kernel %s of %s: %w", l.kernel, l.unit, v.Check("cuLaunchKernel", code))
		},
	}, nil
}
