//go:build linux

package fake

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/athanor-llm/athanor/device/cuda/nv"
)

func threadID() int { return syscall.Gettid() }

// memoryProcs sets the procedures of allocations and copies.
func (g *GPU) memoryProcs(d *nv.Driver) {
	d.MemAlloc = g.resting("MemAlloc", func(a []uintptr) int32 {
		b, err := unix.Mmap(-1, 0, int(a[1]), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return 2
		}
		for i := range min(len(b), 16<<20) { // stale contents: NaN in every type
			b[i] = 0xff
		}
		p := uintptr(unsafe.Pointer(&b[0]))
		g.mu.Lock()
		g.memory[p], g.owners[p] = b, g.current()
		g.mu.Unlock()
		set(a[0], p)
		return 0
	})
	d.MemFree = g.resting("MemFree", func(a []uintptr) int32 {
		g.mu.Lock()
		b := g.memory[a[0]]
		delete(g.memory, a[0])
		delete(g.owners, a[0])
		g.mu.Unlock()
		if b == nil || unix.Munmap(b) != nil {
			return invalidValue
		}
		return 0
	})
	d.MemGetInfo = g.proc("MemGetInfo", false, func(a []uintptr) int32 {
		set(a[0], uint64(15<<30))
		set(a[1], uint64(16<<30))
		return 0
	})
	d.MemHostRegister = g.resting("MemHostRegister", func(a []uintptr) int32 {
		g.mu.Lock()
		g.memory[a[0]] = bytesAt(a[0], int(a[1]))
		g.mu.Unlock()
		return 0
	})
	d.MemHostUnregister = g.resting("MemHostUnregister", func(a []uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.memory[a[0]] == nil {
			return invalidValue
		}
		delete(g.memory, a[0])
		return 0
	})
	d.Memcpy = g.proc("Memcpy", false, func(a []uintptr) int32 {
		if !g.insideLocked(a[0], a[2]) && !g.insideLocked(a[1], a[2]) {
			return invalidValue // one side is the caller's own memory
		}
		copy(bytesAt(a[0], int(a[2])), bytesAt(a[1], int(a[2])))
		return 0
	})
	d.MemcpyAsync = g.proc("MemcpyAsync", false, func(a []uintptr) int32 {
		dst, src, n := a[0], a[1], a[2]
		if !g.insideLocked(dst, n) || !g.insideLocked(src, n) {
			return illegalAddress
		}
		return g.push(a[3], func() { copy(bytesAt(dst, int(n)), bytesAt(src, int(n))) })
	})
	d.MemcpyPeerAsync = g.proc("MemcpyPeerAsync", false, func(a []uintptr) int32 {
		dst, src, n := a[0], a[2], a[4]
		if !g.ownedBy(a[1], dst, n) || !g.ownedBy(a[3], src, n) {
			return invalidValue
		}
		return g.push(a[5], func() { copy(bytesAt(dst, int(n)), bytesAt(src, int(n))) })
	})
	d.Memcpy2DAsync = g.proc("Memcpy2DAsync", false, func(a []uintptr) int32 {
		c := *(*nv.Copy2D)(pointer(a[0])) // like the driver, keep a copy, not the address
		if !g.insideLocked(uintptr(c.Dst), uintptr((c.Height-1)*c.DstPitch+c.Width)) || !g.insideLocked(uintptr(c.Src), uintptr((c.Height-1)*c.SrcPitch+c.Width)) {
			return illegalAddress
		}
		return g.push(a[1], func() {
			for r := range c.Height {
				copy(bytesAt(uintptr(c.Dst+r*c.DstPitch), int(c.Width)), bytesAt(uintptr(c.Src+r*c.SrcPitch), int(c.Width)))
			}
		})
	})
}

// ownedBy reports whether n bytes at p lie in an allocation of the context.
func (g *GPU) ownedBy(context, p, n uintptr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for base, owner := range g.owners {
		if b := g.memory[base]; owner == context && p >= base && n <= uintptr(len(b)) && p-base <= uintptr(len(b))-n {
			return true
		}
	}
	return false
}

// codeProcs sets the procedures of modules and launches.
func (g *GPU) codeProcs(d *nv.Driver) {
	d.ModuleLoadData = g.resting("ModuleLoadData", func(a []uintptr) int32 {
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
	})
	d.ModuleUnload = g.resting("ModuleUnload", func(a []uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.images, a[0])
		return 0
	})
	d.ModuleGetFunction = g.resting("ModuleGetFunction", func(a []uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		image := g.images[a[1]]
		if image == nil {
			return invalidHandle
		}
		h := g.handle()
		g.kernels[h] = kernelOf{image, stringAt(a[2]), 48 << 10}
		set(a[0], h)
		return 0
	})
	d.FuncSetAttribute = g.proc("FuncSetAttribute", false, func(a []uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		k, ok := g.kernels[a[0]]
		if !ok || a[1] != nv.FuncSharedMemory || a[2] > uintptr(g.mostShared()) {
			return invalidValue
		}
		k.shared = uint32(a[2])
		g.kernels[a[0]] = k
		return 0
	})
	d.LaunchKernel = g.proc("LaunchKernel", false, g.launch)
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
