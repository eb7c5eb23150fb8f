//go:build linux

package fake

import "github.com/athanor-llm/athanor/device/cuda/nv"

// codeProcs sets the procedures of modules and launches.
func (g *GPU) codeProcs(d *nv.Driver) {
	d.ModuleLoadData = g.resting("ModuleLoadData", g.moduleLoadData)
	d.ModuleUnload = g.resting("ModuleUnload", g.moduleUnload)
	d.ModuleGetFunction = g.resting("ModuleGetFunction", g.moduleGetFunction)
	d.FuncSetAttribute = g.proc("FuncSetAttribute", false, g.funcSetAttribute)
	d.LaunchKernel = g.proc("LaunchKernel", false, g.launch)
}

func (g *GPU) moduleLoadData(a []uintptr) int32 {
	image := stringAt(a[1])
	if g.Load != nil {
		if err := g.Load([]byte(image)); err != nil {
			g.breakDown(launchFailed, err)
			return launchFailed
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.handle()
	g.images[h] = []byte(image)
	set(a[0], h)
	return 0
}

func (g *GPU) moduleUnload(a []uintptr) int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.images, a[0])
	return 0
}

func (g *GPU) moduleGetFunction(a []uintptr) int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	image := g.images[a[1]]
	if image == nil {
		return invalidHandle
	}
	h := g.handle()
	// Part of the 48 KiB that every launch may have is the kernel's own, which the fake does not know.
	g.kernels[h] = kernelOf{image, stringAt(a[2]), 47 << 10}
	set(a[0], h)
	return 0
}

func (g *GPU) funcSetAttribute(a []uintptr) int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	k, ok := g.kernels[a[0]]
	if !ok || a[1] != nv.FuncSharedMemory || a[2] > uintptr(g.mostShared()) {
		return invalidValue
	}
	k.shared = uint32(a[2])
	g.kernels[a[0]] = k
	return 0
}

func (g *GPU) launch(a []uintptr) int32 {
	g.mu.Lock()
	k, ok := g.kernels[a[0]]
	g.mu.Unlock()
	extra := (*[5]uintptr)(pointer(a[10]))
	if !ok || extra[0] != nv.ParamBuffer || extra[2] != nv.ParamSize || extra[4] != 0 {
		return invalidValue
	}
	grid, block := [3]uint32{uint32(a[1]), uint32(a[2]), uint32(a[3])}, [3]uint32{uint32(a[4]), uint32(a[5]), uint32(a[6])}
	if uint64(grid[0])*uint64(grid[1])*uint64(grid[2]) == 0 || max(grid[1], grid[2]) > 65535 || block[0] == 0 || block[0] > 1024 || uint32(a[7]) > k.shared {
		return invalidValue
	}
	// The driver copies the arguments before it returns.
	size := *(*uint64)(pointer(extra[3]))
	args := append([]byte(nil), bytesAt(extra[1], int(size))...)
	shared := uint32(a[7])
	return g.push(a[8], func() {
		if g.Kernel == nil {
			return
		}
		if err := g.Kernel(k.image, k.name, grid, block, shared, args); err != nil {
			g.breakDown(launchFailed, err)
		}
	})
}
