package cuda

import (
	"fmt"
	"runtime"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/kernel/pool"
)

// Transfers between arenas and the caller's memory, between rounds. The driver copies
// ordinary memory on one thread, at a fraction of the link's rate. So large pieces go
// through two small pinned buffers: all cores copy to one while the GPU fetches the other.

const (
	largeBytes  = 1 << 20   // transfers of at least this size are shared by the cores
	bounceBytes = 2 << 20   // of a buffer: half of what engines write at once
	taskBytes   = 256 << 10 // copied by a core at a time
)

// Read copies bytes out of an arena. Call it between rounds only.
func (d *Device) Read(tier device.Tier, addr int64, p []byte) error {
	return d.transfer(tier, addr, p, false)
}

// Write copies bytes into an arena. Call it between rounds only.
func (d *Device) Write(tier device.Tier, addr int64, p []byte) error {
	return d.transfer(tier, addr, p, true)
}

func (d *Device) transfer(tier device.Tier, addr int64, p []byte, write bool) error {
	if err := d.arenas.inside(tier, addr, int64(len(p))); err != nil || len(p) == 0 {
		return err
	}
	switch {
	case tier == device.DiskTier && write:
		return d.arenas.disk.Access(&d.meter).Write(p, addr)
	case tier == device.DiskTier:
		return d.arenas.disk.Access(&d.meter).Read(p, addr)
	case tier == device.HostTier && write:
		d.copier.copy(d.arenas.host.Bytes()[addr:][:len(p)], p)
		return nil
	case tier == device.HostTier:
		d.copier.copy(p, d.arenas.host.Bytes()[addr:][:len(p)])
		return nil
	case len(p) >= largeBytes:
		return d.work.do(func() error { return d.copier.through(&d.work, d.arenas.memory+uintptr(addr), p, write) })
	}
	dst, src := d.arenas.memory+uintptr(addr), nv.Addr(&p[0])
	if !write {
		dst, src = src, dst
	}
	err := d.work.do(func() error {
		if err := d.driver.Check("cuMemcpy", d.driver.Memcpy(dst, src, uintptr(len(p)))); err != nil || !write {
			return err
		}
		// A copy from pageable memory returns when the bytes are staged. The default
		// stream then brings them to the GPU, and our streams do not wait for it.
		return d.driver.Check("cuCtxSynchronize", d.driver.CtxSynchronize())
	})
	runtime.KeepAlive(p)
	return err
}

// Clear implements device.Clearer.
func (d *Device) Clear(tier device.Tier, addr, n int64) error {
	if err := d.arenas.inside(tier, addr, n); err != nil || n == 0 {
		return err
	}
	switch tier {
	case device.HostTier:
		d.copier.run(sharedCopy{dst: d.arenas.host.Bytes()[addr:][:n]})
		return nil
	case device.DeviceTier:
		return d.work.do(func() error {
			v, s := d.driver, d.work.streams[device.Compute]
			if err := v.Check("cuMemsetD8Async", v.MemsetD8Async(d.arenas.memory+uintptr(addr), 0, uintptr(n), s)); err != nil {
				return err
			}
			return v.Check("cuStreamSynchronize", v.StreamSynchronize(s))
		})
	}
	return fmt.Errorf("the %s tier cannot be cleared, only written", tier)
}

// copier copies bytes with all cores.
type copier struct {
	pool   *pool.Pool
	shared sharedCopy
	bounce [2][]byte // pinned buffers; nil until a transfer is large
}

// copy copies within the host's memory, on all cores if there is much to copy.
func (c *copier) copy(dst, src []byte) {
	if len(dst) < largeBytes {
		cpu.CopyBytes(dst, src)
		return
	}
	c.run(sharedCopy{dst, src})
}

// run copies or zeroes on all cores.
func (c *copier) run(all sharedCopy) {
	c.shared = all
	c.pool.Run((len(all.dst)+taskBytes-1)/taskBytes, &c.shared)
	c.shared = sharedCopy{}
}

// through copies p to or from the GPU's memory through the buffers, on the worker. Each buffer uses one
// of the streams that are idle between rounds.
func (c *copier) through(w *worker, at uintptr, p []byte, write bool) error {
	v := w.d.driver
	if c.bounce[0] == nil {
		b, err := w.d.registered.pin(2 * bounceBytes)
		if err != nil {
			return err
		}
		c.bounce = [2][]byte{b[:bounceBytes], b[bounceBytes:]}
	}
	streams := [2]uintptr{w.streams[device.HostToDev], w.streams[device.DevToHost]}
	var due [2][]byte // parts of p that the buffers' latest copies cover
	for k := 0; len(p) > 0 || due[0] != nil || due[1] != nil; k = 1 - k {
		buffer := c.bounce[k]
		if err := w.ask("cuStreamSynchronize", v.StreamSynchronize, streams[k]); err != nil {
			return err
		}
		if !write {
			c.copy(due[k], buffer[:len(due[k])])
		}
		due[k] = nil
		n := min(len(p), bounceBytes)
		if n == 0 {
			continue
		}
		dst, src := address(buffer), at
		if write {
			c.copy(buffer[:n], p[:n])
			dst, src = src, dst
		}
		if err := w.ask("cuMemcpyAsync", v.MemcpyAsync, dst, src, uintptr(n), streams[k]); err != nil {
			return err
		}
		due[k], p, at = p[:n], p[n:], at+uintptr(n)
	}
	return nil
}

// sharedCopy is a copy whose parts are tasks. Without a source it zeroes.
type sharedCopy struct{ dst, src []byte }

// Task implements pool.Body.
func (c *sharedCopy) Task(i, _ int) {
	lo, hi := i*taskBytes, min((i+1)*taskBytes, len(c.dst))
	if c.src == nil {
		clear(c.dst[lo:hi])
		return
	}
	copy(c.dst[lo:hi], c.src[lo:hi])
}
