//go:build linux

package fake

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/athanor-llm/athanor/device/cuda/nv"
)

func threadID() int { return syscall.Gettid() }

// memoryProcs sets the procedures of allocations and copies.
func (g *GPU) memoryProcs(d *nv.Driver) {
	d.MemAlloc = g.resting("MemAlloc", g.memAlloc)
	d.MemFree = g.resting("MemFree", g.memFree)
	d.MemGetInfo = g.proc("MemGetInfo", false, g.memGetInfo)
	d.MemHostRegister = g.resting("MemHostRegister", g.memHostRegister)
	d.MemHostUnregister = g.resting("MemHostUnregister", g.memHostUnregister)
	d.Memcpy = g.proc("Memcpy", false, g.memcpy)
	d.MemcpyAsync = g.proc("MemcpyAsync", false, g.memcpyAsync)
	d.MemcpyPeerAsync = g.proc("MemcpyPeerAsync", false, g.memcpyPeerAsync)
	d.MemsetD8Async = g.proc("MemsetD8Async", false, g.memsetD8Async)
	d.Memcpy2DAsync = g.proc("Memcpy2DAsync", false, g.memcpy2DAsync)
}

func (g *GPU) memAlloc(a []uintptr) int32 {
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
}

func (g *GPU) memFree(a []uintptr) int32 {
	g.mu.Lock()
	b := g.memory[a[0]]
	delete(g.memory, a[0])
	delete(g.owners, a[0])
	g.mu.Unlock()
	if b == nil || unix.Munmap(b) != nil {
		return invalidValue
	}
	return 0
}

func (g *GPU) memGetInfo(a []uintptr) int32 {
	set(a[0], uint64(15<<30))
	set(a[1], uint64(16<<30))
	return 0
}

func (g *GPU) memHostRegister(a []uintptr) int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := int64(a[1])
	for p := range g.pinned {
		n := uintptr(len(g.memory[p]))
		if all += int64(n); p < a[0]+a[1] && a[0] < p+n {
			return alreadyRegistered
		}
	}
	if g.limit > 0 && all > g.limit {
		return outOfMemory
	}
	g.memory[a[0]], g.pinned[a[0]] = bytesAt(a[0], int(a[1])), g.current()
	return 0
}

func (g *GPU) memHostUnregister(a []uintptr) int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pinned[a[0]] == 0 {
		return invalidValue
	}
	delete(g.memory, a[0])
	delete(g.pinned, a[0])
	return 0
}

func (g *GPU) memcpy(a []uintptr) int32 {
	if !g.insideLocked(a[0], a[2]) && !g.insideLocked(a[1], a[2]) {
		return invalidValue // one side is the caller's own memory
	}
	copy(bytesAt(a[0], int(a[2])), bytesAt(a[1], int(a[2])))
	return 0
}

func (g *GPU) memcpyAsync(a []uintptr) int32 {
	dst, src, n := a[0], a[1], a[2]
	if !g.insideLocked(dst, n) || !g.insideLocked(src, n) {
		return illegalAddress
	}
	return g.push(a[3], func() { copy(bytesAt(dst, int(n)), bytesAt(src, int(n))) })
}

func (g *GPU) memsetD8Async(a []uintptr) int32 {
	dst, value, n := a[0], byte(a[1]), a[2]
	if a[1] > 0xff || !g.insideLocked(dst, n) {
		return invalidValue
	}
	return g.push(a[3], func() {
		b := bytesAt(dst, int(n))
		for i := range b {
			b[i] = value
		}
	})
}

func (g *GPU) memcpyPeerAsync(a []uintptr) int32 {
	dst, src, n := a[0], a[2], a[4]
	if !g.ownedBy(a[1], dst, n) || !g.ownedBy(a[3], src, n) {
		return invalidValue
	}
	g.mu.Lock()
	slow := g.Peers && a[1] != a[3] && !g.reaches[[2]uintptr{a[1], a[3]}]
	g.mu.Unlock()
	if slow {
		g.breakDown(invalidValue, errors.New("a copy between GPUs goes through the host, since access was not enabled"))
		return invalidValue
	}
	return g.push(a[5], func() { copy(bytesAt(dst, int(n)), bytesAt(src, int(n))) })
}

func (g *GPU) memcpy2DAsync(a []uintptr) int32 {
	c := *(*nv.Copy2D)(pointer(a[0])) // like the driver, keep a copy, not the address
	if !g.insideLocked(uintptr(c.Dst), uintptr((c.Height-1)*c.DstPitch+c.Width)) || !g.insideLocked(uintptr(c.Src), uintptr((c.Height-1)*c.SrcPitch+c.Width)) {
		return illegalAddress
	}
	return g.push(a[1], func() {
		for r := range c.Height {
			copy(bytesAt(uintptr(c.Dst+r*c.DstPitch), int(c.Width)), bytesAt(uintptr(c.Src+r*c.SrcPitch), int(c.Width)))
		}
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
