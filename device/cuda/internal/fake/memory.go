//go:build linux

package fake

import (
	"bytes"
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/athanor-llm/athanor/device/cuda/nv"
)

func threadID() int { return syscall.Gettid() }

// memory is what has been allocated or registered. The GPU's lock guards it.
type memory struct {
	gpu    *GPU
	blocks map[uintptr][]byte  // by address
	owners map[uintptr]uintptr // contexts of allocations
	pinned map[uintptr]uintptr // contexts of registrations
	limit  int64               // bytes that can be registered together; 0: any
}

// inside reports whether n bytes at p lie in one allocation. The caller holds the lock.
func (m *memory) inside(p, n uintptr) bool {
	for base, b := range m.blocks {
		if p >= base && n <= uintptr(len(b)) && p-base <= uintptr(len(b))-n {
			return true
		}
	}
	return false
}

func (m *memory) insideLocked(p, n uintptr) bool {
	m.gpu.mu.Lock()
	defer m.gpu.mu.Unlock()
	return m.inside(p, n)
}

// endContext ends a context's registrations. The caller holds the lock.
func (m *memory) endContext(context uintptr) {
	for p, owner := range m.pinned {
		if owner == context {
			delete(m.pinned, p)
			delete(m.blocks, p)
		}
	}
}

// setProcs sets the procedures of allocations and copies.
func (m *memory) setProcs(d *nv.Driver) {
	g := m.gpu
	d.MemAlloc = g.resting("MemAlloc", m.alloc)
	d.MemFree = g.resting("MemFree", m.free)
	d.MemGetInfo = g.proc("MemGetInfo", false, m.info)
	d.MemHostRegister = g.resting("MemHostRegister", m.register)
	d.MemHostUnregister = g.resting("MemHostUnregister", m.unregister)
	d.Memcpy = g.proc("Memcpy", false, m.copy)
	d.MemcpyAsync = g.proc("MemcpyAsync", false, m.copyAsync)
	d.MemcpyPeerAsync = g.proc("MemcpyPeerAsync", false, m.copyPeerAsync)
	d.MemsetD8Async = g.proc("MemsetD8Async", false, m.setAsync)
	d.Memcpy2DAsync = g.proc("Memcpy2DAsync", false, m.copy2DAsync)
}

func (m *memory) alloc(a []uintptr) int32 {
	b, err := unix.Mmap(-1, 0, int(a[1]), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return 2
	}
	spoil(b)
	p := uintptr(unsafe.Pointer(&b[0]))
	m.gpu.mu.Lock()
	m.blocks[p], m.owners[p] = b, m.gpu.current()
	m.gpu.mu.Unlock()
	set(a[0], p)
	return 0
}

// spoil leaves stale contents in memory, NaN in every type: in all of a small block, and in the beginning of
// every MiB of a large one, since touching all of it takes longer than most tests.
func spoil(b []byte) {
	const most, unit, part = 1 << 20, 1 << 20, 16 << 10
	nan := bytes.Repeat([]byte{0xff}, unit)
	for at := 0; at < len(b); at += unit {
		some := unit
		if at >= most {
			some = part
		}
		copy(b[at:], nan[:some])
	}
}

func (m *memory) free(a []uintptr) int32 {
	m.gpu.mu.Lock()
	b := m.blocks[a[0]]
	delete(m.blocks, a[0])
	delete(m.owners, a[0])
	m.gpu.mu.Unlock()
	if b == nil || unix.Munmap(b) != nil {
		return invalidValue
	}
	return 0
}

func (m *memory) info(a []uintptr) int32 {
	set(a[0], uint64(15<<30))
	set(a[1], uint64(16<<30))
	return 0
}

func (m *memory) register(a []uintptr) int32 {
	m.gpu.mu.Lock()
	defer m.gpu.mu.Unlock()
	all := int64(a[1])
	for p := range m.pinned {
		n := uintptr(len(m.blocks[p]))
		if all += int64(n); p < a[0]+a[1] && a[0] < p+n {
			return alreadyRegistered
		}
	}
	if m.limit > 0 && all > m.limit {
		return outOfMemory
	}
	m.blocks[a[0]], m.pinned[a[0]] = bytesAt(a[0], int(a[1])), m.gpu.current()
	return 0
}

func (m *memory) unregister(a []uintptr) int32 {
	m.gpu.mu.Lock()
	defer m.gpu.mu.Unlock()
	if m.pinned[a[0]] == 0 {
		return invalidValue
	}
	delete(m.blocks, a[0])
	delete(m.pinned, a[0])
	return 0
}

func (m *memory) copy(a []uintptr) int32 {
	if !m.insideLocked(a[0], a[2]) && !m.insideLocked(a[1], a[2]) {
		return invalidValue // one side is the caller's own memory
	}
	copy(bytesAt(a[0], int(a[2])), bytesAt(a[1], int(a[2])))
	return 0
}

func (m *memory) copyAsync(a []uintptr) int32 {
	dst, src, n := a[0], a[1], a[2]
	if !m.insideLocked(dst, n) || !m.insideLocked(src, n) {
		return illegalAddress
	}
	return m.gpu.push(a[3], func() { copy(bytesAt(dst, int(n)), bytesAt(src, int(n))) })
}

func (m *memory) setAsync(a []uintptr) int32 {
	dst, value, n := a[0], byte(a[1]), a[2]
	if a[1] > 0xff || !m.insideLocked(dst, n) {
		return invalidValue
	}
	return m.gpu.push(a[3], func() {
		b := bytesAt(dst, int(n))
		for i := range b {
			b[i] = value
		}
	})
}

func (m *memory) copyPeerAsync(a []uintptr) int32 {
	dst, src, n := a[0], a[2], a[4]
	if !m.ownedBy(a[1], dst, n) || !m.ownedBy(a[3], src, n) {
		return invalidValue
	}
	m.gpu.mu.Lock()
	slow := m.gpu.Peers && a[1] != a[3] && !m.gpu.reaches[[2]uintptr{a[1], a[3]}]
	m.gpu.mu.Unlock()
	if slow {
		m.gpu.breakDown(invalidValue, errors.New("a copy between GPUs goes through the host, since access was not enabled"))
		return invalidValue
	}
	return m.gpu.push(a[5], func() { copy(bytesAt(dst, int(n)), bytesAt(src, int(n))) })
}

func (m *memory) copy2DAsync(a []uintptr) int32 {
	c := *(*nv.Copy2D)(pointer(a[0])) // like the driver, keep a copy, not the address
	if !m.insideLocked(uintptr(c.Dst), uintptr((c.Height-1)*c.DstPitch+c.Width)) || !m.insideLocked(uintptr(c.Src), uintptr((c.Height-1)*c.SrcPitch+c.Width)) {
		return illegalAddress
	}
	return m.gpu.push(a[1], func() {
		for r := range c.Height {
			copy(bytesAt(uintptr(c.Dst+r*c.DstPitch), int(c.Width)), bytesAt(uintptr(c.Src+r*c.SrcPitch), int(c.Width)))
		}
	})
}

// ownedBy reports whether n bytes at p lie in an allocation of the context.
func (m *memory) ownedBy(context, p, n uintptr) bool {
	m.gpu.mu.Lock()
	defer m.gpu.mu.Unlock()
	for base, owner := range m.owners {
		if b := m.blocks[base]; owner == context && p >= base && n <= uintptr(len(b)) && p-base <= uintptr(len(b))-n {
			return true
		}
	}
	return false
}
