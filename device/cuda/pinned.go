package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/internal/sysmem"
)

// Pinned is host memory that stays pinned when a device is closed, for the next one:
// pinning 100 GB takes half a minute, and planning opens several devices before the run's.
// The zero value holds nothing; Close it after the devices.
//
// It holds what its latest device reserved. A device that reserves less has the rest given
// back at once, and one that reserves more has only the difference pinned, since the arena
// lies in address space for all of the machine's memory. What the arena contains then is
// arbitrary: programs read nothing that neither they nor the session wrote, which
// verify.Verify proves.
//
// One device has it at a time; others that are open meanwhile pin their own. Registered
// memory belongs to a context, which would end with the device, so Pinned retains the
// context too. If a device leaves that context broken, all is released, as it would be
// without Pinned, and the next device begins with a new one.
type Pinned struct {
	taken   atomic.Bool
	driver  *nv.Driver
	device  int     // whose context is retained
	context uintptr // 0: nothing is held
	slice   int64   // registered at once, in bytes; 0: sliceBytes
	arena   *cpu.Arena
	blocks  [][]byte // registered slices of the arena, ascending
}

// sliceBytes is registered at once: the driver needs contiguous tables for that, and
// threads can share the work.
const sliceBytes = 1 << 30

// take makes p a device's own until give. It reports false if another one has it.
func (p *Pinned) take() bool { return p.taken.CompareAndSwap(false, true) }

// give ends a device's ownership. A broken context has to be released.
func (p *Pinned) give(broken bool) (err error) {
	if broken {
		err = p.free()
	}
	p.taken.Store(false)
	return err
}

// Close releases memory and context. No device may have p; it can be used again.
func (p *Pinned) Close() error {
	if !p.take() {
		return errors.New("pinned memory is closed before the device that uses it")
	}
	defer p.taken.Store(false)
	return p.free()
}

// reserve returns an arena of n bytes, all of them registered with the context of GPU
// number of the driver. After an error p holds nothing.
func (p *Pinned) reserve(v *nv.Driver, number int, n int64) (*cpu.Arena, error) {
	err := p.prepare(v, number, n)
	if err == nil {
		err = p.resize(n)
	}
	if err != nil {
		return nil, errors.Join(err, p.free())
	}
	return p.arena, nil
}

// prepare retains the context and reserves address space, if what p holds is of another
// GPU or too small for n bytes.
func (p *Pinned) prepare(v *nv.Driver, number int, n int64) error {
	if p.arena != nil && p.device == number && n <= p.arena.Most() {
		return nil
	}
	err := p.free()
	if err != nil {
		return err
	}
	if p.context, err = v.Word("cuDevicePrimaryCtxRetain", v.DevicePrimaryCtxRetain, uintptr(number)); err != nil {
		p.context = 0
		return err
	}
	p.driver, p.device = v, number
	if p.slice == 0 {
		p.slice = sliceBytes
	}
	most := n
	if mem, err := sysmem.Read(); err == nil {
		most = max(n, mem.Total)
	}
	if p.arena, err = cpu.NewSpace(most); err != nil && most > n { // ulimit -v
		p.arena, err = cpu.NewSpace(n)
	}
	return err
}

// resize gives the arena n bytes and registers those that are not registered yet.
func (p *Pinned) resize(n int64) error {
	had, keep := int64(len(p.arena.Bytes())), len(p.blocks)
	if n != had { // the last slice ends elsewhere in an arena of another size
		keep = int(min(n, had) / p.slice)
	}
	p.unregister(p.blocks[keep:])
	p.blocks = p.blocks[:keep]
	if err := p.arena.Resize(n); err != nil {
		return err
	}
	b := p.arena.Bytes()
	var parts [][]byte
	for at := int64(keep) * p.slice; at < n; at += p.slice {
		parts = append(parts, b[at:min(at+p.slice, n)])
	}
	return p.register(parts)
}

// register pins slices that follow the pinned ones; an error says how much is pinned.
func (p *Pinned) register(parts [][]byte) error {
	done := make([]bool, len(parts))
	err := p.each(len(parts), func(i int) error {
		const flags = nv.RegisterPortable | nv.RegisterMapped
		err := p.driver.Check("cuMemHostRegister", p.driver.MemHostRegister(address(parts[i]), uintptr(len(parts[i])), flags))
		done[i] = err == nil
		return err
	})
	for i, is := range done {
		if is {
			p.blocks = append(p.blocks, parts[i])
		}
	}
	if err == nil {
		return nil
	}
	var pinned int
	for _, b := range p.blocks {
		pinned += len(b)
	}
	return fmt.Errorf("only %d of %d bytes of host memory could be pinned: %w; hint: set a smaller limits.host, or raise ulimit -l", pinned, len(p.arena.Bytes()), err)
}

// unregister unpins slices. An error would be that of a broken context, which goes.
func (p *Pinned) unregister(parts [][]byte) {
	_ = p.each(len(parts), func(i int) error {
		p.driver.MemHostUnregister(address(parts[i]))
		return nil
	})
}

// pinners is the number of threads that pin slices at a time. Looking up a slice's pages
// takes most of the time, and the kernel lets several threads do that; entering them
// into the GPU's tables it does not.
const pinners = 6

// each calls f for 0 to n-1, on threads with the context, starting in order. After an error it starts
// no more calls and waits for those under way.
func (p *Pinned) each(n int, f func(i int) error) error {
	var all sync.WaitGroup
	var next atomic.Int64
	var failed atomic.Bool
	errs := make([]error, min(n, pinners))
	for k := range errs {
		all.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			err := p.driver.Check("cuCtxSetCurrent", p.driver.CtxSetCurrent(p.context))
			for err == nil && !failed.Load() {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				err = f(i)
			}
			if errs[k] = err; err != nil {
				failed.Store(true)
			}
		})
	}
	all.Wait()
	return cmp.Or(errs...)
}

// free releases everything. The context goes before the memory: if it is broken, only ending it unpins
// the memory.
func (p *Pinned) free() (err error) {
	p.unregister(p.blocks)
	p.blocks = nil
	if p.context != 0 {
		p.driver.DevicePrimaryCtxRelease(uintptr(p.device))
		p.context = 0
	}
	if p.arena != nil {
		err = p.arena.Close()
		p.arena = nil
	}
	return err
}
