package cuda

import (
	"fmt"
	"runtime"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda/nv"
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
	if err := d.inside(tier, addr, int64(len(p))); err != nil || len(p) == 0 {
		return err
	}
	switch {
	case tier == device.DiskTier && write:
		return d.disk.Access(&d.meter).Write(p, addr)
	case tier == device.DiskTier:
		return d.disk.Access(&d.meter).Read(p, addr)
	case tier == device.HostTier && write:
		d.copy(d.host.Bytes()[addr:][:len(p)], p)
		return nil
	case tier == device.HostTier:
		d.copy(p, d.host.Bytes()[addr:][:len(p)])
		return nil
	case len(p) >= largeBytes:
		return d.work.do(func() error { return d.through(d.memory+uintptr(addr), p, write) })
	}
	dst, src := d.memory+uintptr(addr), nv.Addr(&p[0])
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

// inside checks that an arena has n bytes at an address.
func (d *Device) inside(tier device.Tier, addr, n int64) error {
	if tier >= device.NumTiers || addr < 0 || addr > d.sizes[tier] || n < 0 || n > d.sizes[tier]-addr {
		return fmt.Errorf("%d bytes at %d are outside of the %s arena", n, addr, tier)
	}
	return nil
}

// through copies p to or from the GPU's memory through the buffers, on the worker. Each buffer uses one
// of the streams that are idle between rounds.
func (d *Device) through(at uintptr, p []byte, write bool) error {
	if d.bounce[0] == nil {
		b, err := d.pin(2 * bounceBytes)
		if err != nil {
			return err
		}
		d.bounce = [2][]byte{b[:bounceBytes], b[bounceBytes:]}
	}
	streams := [2]uintptr{d.work.streams[device.HostToDev], d.work.streams[device.DevToHost]}
	var due [2][]byte // parts of p that the buffers' latest copies cover
	for k := 0; len(p) > 0 || due[0] != nil || due[1] != nil; k = 1 - k {
		buffer := d.bounce[k]
		if err := d.work.ask("cuStreamSynchronize", d.driver.StreamSynchronize, streams[k]); err != nil {
			return err
		}
		if !write {
			d.copy(due[k], buffer[:len(due[k])])
		}
		due[k] = nil
		n := min(len(p), bounceBytes)
		if n == 0 {
			continue
		}
		dst, src := address(buffer), at
		if write {
			d.copy(buffer[:n], p[:n])
			dst, src = src, dst
		}
		if err := d.work.ask("cuMemcpyAsync", d.driver.MemcpyAsync, dst, src, uintptr(n), streams[k]); err != nil {
			return err
		}
		due[k], p, at = p[:n], p[n:], at+uintptr(n)
	}
	return nil
}

// Clear implements device.Clearer.
func (d *Device) Clear(tier device.Tier, addr, n int64) error {
	if err := d.inside(tier, addr, n); err != nil || n == 0 {
		return err
	}
	switch tier {
	case device.HostTier:
		d.shared = sharedCopy{dst: d.host.Bytes()[addr:][:n]}
		d.pool.Run(int((n+taskBytes-1)/taskBytes), &d.shared)
		d.shared = sharedCopy{}
		return nil
	case device.DeviceTier:
		return d.work.do(func() error {
			v, s := d.driver, d.work.streams[device.Compute]
			if err := v.Check("cuMemsetD8Async", v.MemsetD8Async(d.memory+uintptr(addr), 0, uintptr(n), s)); err != nil {
				return err
			}
			return v.Check("cuStreamSynchronize", v.StreamSynchronize(s))
		})
	}
	return fmt.Errorf("the %s tier cannot be cleared, only written", tier)
}

// copy copies within the host's memory, on all cores if there is much to copy.
func (d *Device) copy(dst, src []byte) {
	if len(dst) < largeBytes {
		cpu.CopyBytes(dst, src)
		return
	}
	d.shared = sharedCopy{dst, src}
	d.pool.Run((len(dst)+taskBytes-1)/taskBytes, &d.shared)
	d.shared = sharedCopy{}
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
