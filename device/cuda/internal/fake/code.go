//go:build linux

package fake

import "github.com/athanor-llm/athanor/device/cuda/nv"

// modules is the code that has been loaded. The GPU's lock guards it.
type modules struct {
	gpu     *GPU
	images  map[uintptr][]byte
	kernels map[uintptr]kernelOf
}

type kernelOf struct {
	image  []byte
	name   string
	shared uint32 // most dynamic shared memory that a launch may request
}

// setProcs sets the procedures of modules and launches.
func (m *modules) setProcs(d *nv.Driver) {
	g := m.gpu
	d.ModuleLoadData = g.resting("ModuleLoadData", m.loadData)
	d.ModuleUnload = g.resting("ModuleUnload", m.unload)
	d.ModuleGetFunction = g.resting("ModuleGetFunction", m.getFunction)
	d.FuncSetAttribute = g.proc("FuncSetAttribute", false, m.setAttribute)
	d.LaunchKernel = g.proc("LaunchKernel", false, m.launch)
}

func (m *modules) loadData(a []uintptr) int32 {
	image := stringAt(a[1])
	if m.gpu.Load != nil {
		if err := m.gpu.Load([]byte(image)); err != nil {
			m.gpu.breakDown(launchFailed, err)
			return launchFailed
		}
	}
	m.gpu.mu.Lock()
	defer m.gpu.mu.Unlock()
	h := m.gpu.handle()
	m.images[h] = []byte(image)
	set(a[0], h)
	return 0
}

func (m *modules) unload(a []uintptr) int32 {
	m.gpu.mu.Lock()
	defer m.gpu.mu.Unlock()
	delete(m.images, a[0])
	return 0
}

func (m *modules) getFunction(a []uintptr) int32 {
	m.gpu.mu.Lock()
	defer m.gpu.mu.Unlock()
	image := m.images[a[1]]
	if image == nil {
		return invalidHandle
	}
	h := m.gpu.handle()
	// Part of the 48 KiB that every launch may have is the kernel's own, which the fake does not know.
	m.kernels[h] = kernelOf{image, stringAt(a[2]), 47 << 10}
	set(a[0], h)
	return 0
}

func (m *modules) setAttribute(a []uintptr) int32 {
	m.gpu.mu.Lock()
	defer m.gpu.mu.Unlock()
	k, ok := m.kernels[a[0]]
	if !ok || a[1] != nv.FuncSharedMemory || a[2] > uintptr(m.gpu.mostShared()) {
		return invalidValue
	}
	k.shared = uint32(a[2])
	m.kernels[a[0]] = k
	return 0
}

func (m *modules) launch(a []uintptr) int32 {
	m.gpu.mu.Lock()
	k, ok := m.kernels[a[0]]
	m.gpu.mu.Unlock()
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
	return m.gpu.push(a[8], func() {
		if m.gpu.Kernel == nil {
			return
		}
		if err := m.gpu.Kernel(k.image, k.name, grid, block, shared, args); err != nil {
			m.gpu.breakDown(launchFailed, err)
		}
	})
}
