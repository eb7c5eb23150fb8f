package cuda

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/graph"
)

// arenas are a device's memory in all tiers, and what kernels and the library need beside them.
type arenas struct {
	driver    *nv.Driver
	sizes     [device.NumTiers]int64
	memory    uintptr    // device arena
	workspace uintptr    // of the library, then scratch memory, then flags
	room      int64      // of scratch memory
	host      *cpu.Arena // of pinned
	pinned    *Pinned    // Options.Pinned, or the device's own; nil: no host arena
	disk      *cpu.Disk
}

// allocate allocates the device arena and the memory beside it, on the worker.
func (a *arenas) allocate(bytes int64) (err error) {
	v := a.driver
	if a.memory, err = v.Word("cuMemAlloc", v.MemAlloc, uintptr(bytes)); err != nil {
		return fmt.Errorf("allocate %d bytes on the GPU: %w", bytes, err)
	}
	a.room = scratchBytes
	if a.workspace, err = v.Word("cuMemAlloc", v.MemAlloc, Overhead); err != nil {
		return err
	}
	zero := make([]byte, relayBytes)
	err = v.Check("cuMemcpy", v.Memcpy(a.flagsAt(), nv.Addr(&zero[0]), relayBytes))
	runtime.KeepAlive(zero)
	if err != nil {
		return err
	}
	return v.Check("cuCtxSynchronize", v.CtxSynchronize()) // see transfer
}

// free releases what allocate allocated, on the worker.
func (a *arenas) free() {
	for _, p := range []uintptr{a.memory, a.workspace} {
		if p != 0 {
			a.driver.MemFree(p)
		}
	}
}

// flagsAt returns the address of the flags. Kernels find them clear and leave them clear, except one
// that fails, but then the context is lost, and this memory with it.
func (a *arenas) flagsAt() uintptr { return a.workspace + workspaceBytes + scratchBytes }

// address returns the address of memory outside Go's heap.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// base returns the address of an arena.
func (a *arenas) base(t device.Tier) uintptr {
	switch {
	case t == device.DeviceTier:
		return a.memory
	case t == device.HostTier && a.host != nil:
		return address(a.host.Bytes())
	}
	return 0
}

// at returns the address of an operand.
func (a *arenas) at(o device.Operand) uintptr { return a.base(o.Tier) + uintptr(o.Addr) }

// inside checks that an arena has n bytes at an address.
func (a *arenas) inside(tier device.Tier, addr, n int64) error {
	if tier >= device.NumTiers || addr < 0 || addr > a.sizes[tier] || n < 0 || n > a.sizes[tier]-addr {
		return fmt.Errorf("%d bytes at %d are outside of the %s arena", n, addr, tier)
	}
	return nil
}

// copySteps builds a copy between any two addressable places. The driver rejects ranges
// that span two registrations, so a copy across the border of two slices of the host
// arena is split there, row by row if it has several rows.
func (a *arenas) copySteps(c *device.Call, stream uintptr) (list []step) {
	v := a.driver
	m := cpu.NewTransfer(c.Args[graph.CopyDst], c.Args[graph.CopySrc])
	if m.Rows > 1 && !a.borders(m.To, c.Args[graph.CopyDst]) && !a.borders(m.From, c.Args[graph.CopySrc]) {
		two := nv.NewCopy2D(a.base(m.To)+uintptr(m.Dst), a.base(m.From)+uintptr(m.Src), m.DstStep, m.SrcStep, m.Width, int64(m.Rows))
		return []step{copyRows(v, two, stream)}
	}
	for r := range int64(m.Rows) {
		dst, src := m.Dst+r*m.DstStep, m.Src+r*m.SrcStep
		for left := m.Width; left > 0; {
			n := min(left, a.registeredBytes(m.To, dst), a.registeredBytes(m.From, src))
			list = append(list, step{proc: v.MemcpyAsync,
				args:    []uintptr{a.base(m.To) + uintptr(dst), a.base(m.From) + uintptr(src), uintptr(n), stream},
				explain: func(code int32) error { return v.Check("cuMemcpyAsync", code) }})
			dst, src, left = dst+n, src+n, left-n
		}
	}
	return list
}

// copyRows copies rows of bytes with gaps between them.
func copyRows(v *nv.Driver, two *nv.Copy2D, stream uintptr) step {
	return step{proc: v.Memcpy2DAsync, args: []uintptr{nv.Addr(two), stream}, keep: two,
		explain: func(code int32) error { return v.Check("cuMemcpy2DAsync", code) }}
}

// registeredBytes returns the bytes from an address to the end of its registration.
func (a *arenas) registeredBytes(t device.Tier, addr int64) int64 {
	if t != device.HostTier {
		return math.MaxInt64
	}
	return a.pinned.slice - addr%a.pinned.slice
}

// borders reports whether an operand spans more than one registration.
func (a *arenas) borders(t device.Tier, o device.Operand) bool {
	return o.End()-o.Addr > a.registeredBytes(t, o.Addr)
}

// close closes the arenas of host and disk. kept is the pinned memory that outlives the device; after a
// failure its context is broken.
func (a *arenas) close(kept *Pinned, broken bool) (err error) {
	switch {
	case a.pinned == nil:
	case a.pinned == kept:
		err = a.pinned.give(broken)
	default:
		err = a.pinned.Close()
	}
	if a.disk != nil {
		err = errors.Join(err, a.disk.Close())
	}
	a.sizes, a.host, a.pinned, a.disk = [device.NumTiers]int64{}, nil, nil, nil
	return err
}

// registered is pinned memory that lives as long as the device: flags of host calls, a piece per
// Prepare, and buffers.
type registered struct {
	driver *nv.Driver
	list   []*cpu.Arena
}

// pin returns n bytes of registered memory, zero. Call it on the worker.
func (p *registered) pin(n int64) ([]byte, error) {
	a, err := cpu.NewArena(n)
	if err != nil {
		return nil, err
	}
	p.list = append(p.list, a)
	b := a.Bytes()
	return b, p.driver.Check("cuMemHostRegister", p.driver.MemHostRegister(address(b), uintptr(len(b)), nv.RegisterPortable|nv.RegisterMapped))
}

// unpin ends all registrations, on the worker.
func (p *registered) unpin() {
	for _, a := range p.list {
		p.driver.MemHostUnregister(address(a.Bytes()))
	}
}

// close frees the memory.
func (p *registered) close() (err error) {
	for _, a := range p.list {
		err = errors.Join(err, a.Close())
	}
	p.list = nil
	return err
}
