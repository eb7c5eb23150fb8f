// Package cpu is the backend that every machine has, and the oracle for the others. It
// runs the kernels of package kernel; memory tiers are regions of RAM and a file,
// streams are goroutines.
//
// The device tier is a separate arena although it is the same kind of RAM as the host
// tier. So a laptop behaves as a small GPU: what does not fit into the arena must be
// moved, by copies that take time, on streams that race with the compute stream unless
// the program orders them. Options.Rate throttles the copies to the speed of a slower
// link.
//
//	arenas   mmap outside Go's heap, huge pages, touched once at the start
//	disk     one file, direct I/O where the file system has it, blocks
//	         allocated at the start, name removed at once
//	streams  one goroutine each, a bounded queue, in order
//	events   one word per call: the number of the round that it completed in
//
// After Prepare nothing is allocated or looked up: a launch sends a call number over a
// channel; the number indexes a function bound to its operands.
//
// Kernels of the compute stream use all cores through kernel/pool. The other streams
// have a goroutine each, to which kernels yield (turns.go). Raising GOMAXPROCS above
// the number of cores, so that the operating system schedules them, costs a third of
// the speed (measured): workers are interrupted while others wait for them.
package cpu

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/clock"
	"github.com/athanor-llm/athanor/internal/sysmem"
	"github.com/athanor-llm/athanor/kernel/pool"
)

// Options configure a device. The zero value suffices without a disk tier.
type Options struct {
	// Workers is the number of cores for kernels; 0 means GOMAXPROCS.
	Workers int
	// DiskPath is the file of the disk tier, created by Reserve.
	DiskPath string
	// Rate limits the copies of a stream to this many bytes per second, to emulate a
	// slower link. 0: no limit.
	//
	// A collective takes as long as on a ring whose links carry this many bytes per
	// second in each direction (device.Ring). A message is limited by the lower of the
	// sender's and the receiver's rate.
	Rate [device.NumStreams]float64
	// Fabric joins the device to others as Rank.
	Fabric *Fabric
	Rank   int
	// Apart limits the ranks that compute at the same time, for whole calls, to as many as the cores
	// suffice for, so that each span measures one call alone. It is for timing operators; steps are
	// faster without (by 3 % for four ranks on two cores).
	Apart bool
}

var _ interface {
	device.Device
	device.Meter
	device.Watched
	device.Aborter
} = (*Device)(nil)

// Device implements device.Device.
type Device struct {
	options Options
	opened  time.Time
	pool    *pool.Pool
	arenas  [device.NumTiers]arena
	disk    *disk

	calls   []call
	done    []atomic.Uint32 // round in which a call completed
	issued  []uint32        // round in which a call was launched
	round   atomic.Uint32   // counts from 1; changes in Sync only
	streams [device.NumStreams]*stream
	idle    sync.WaitGroup // streams that have not reached the end of the round

	turns   turns         // streams that want a core
	working *atomic.Int32 // streams that have one
	cores   chan struct{} // semaphore: full while as many ranks compute as the cores suffice for; nil: unless Apart
	meter   Meter         // of all streams
	under   atomic.Bool   // a round is under way
	failed  atomic.Bool   // skip the rest of the round
	mu      sync.Mutex
	err     error // first error of the round
	refused error // why the fabric rejects the device
}

// arena is the memory of one tier; the disk tier has only a size.
type arena struct {
	size    int64
	bytes   []byte
	mapping []byte
}

// New opens the device. Close releases its memory, goroutines and file.
func New(o Options) *Device {
	if o.Workers < 1 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	d := &Device{options: o, opened: clock.Now(), pool: pool.New(o.Workers)}
	d.round.Store(1)
	d.pool.Yield = d.yield
	d.turns, d.working = newTurns(1), new(atomic.Int32)
	rank := 0
	if f := o.Fabric; f != nil && o.Rank >= 0 && o.Rank < f.Ranks() {
		d.opened, d.turns, d.working, rank = f.opened, f.turns, &f.working, o.Rank
	}
	for id := range d.streams {
		d.streams[id] = d.newStream(device.Stream(id))
		d.streams[id].turn = d.turns.of(rank, device.Stream(id))
	}
	for _, s := range d.streams {
		go s.run()
	}
	if o.Fabric != nil {
		d.refused = o.Fabric.join(d, o.Rank)
	}
	return d
}

// Info describes the device.
func (d *Device) Info() device.Info { return device.Info{Name: "cpu", Cores: d.options.Workers} }

// Origin returns where the clock of spans begins.
func (d *Device) Origin() time.Time { return d.opened }

// Reserve reserves the arena of a tier with all of its memory or blocks.
func (d *Device) Reserve(tier device.Tier, bytes int64) error {
	if d.refused != nil {
		return fmt.Errorf("reserve: %w", d.refused)
	}
	err := device.CheckReserve(tier, bytes, d.sizes(), len(d.calls))
	if err != nil || bytes == 0 {
		return err
	}
	a := arena{size: bytes}
	if tier == device.DiskTier {
		d.disk, err = openDisk(d.options.DiskPath, bytes)
	} else if err = enoughMemory(bytes); err == nil {
		a.bytes, a.mapping, err = mapArena(bytes)
	}
	if err != nil {
		return fmt.Errorf("reserve %s tier: %w", tier, err)
	}
	d.arenas[tier] = a
	return nil
}

// sizes returns the sizes of the arenas.
func (d *Device) sizes() (bytes [device.NumTiers]int64) {
	for t := range bytes {
		bytes[t] = d.arenas[t].size
	}
	return bytes
}

// enoughMemory rejects arenas for which the kernel would kill the process. If the
// system does not report its memory, it accepts them.
func enoughMemory(bytes int64) error {
	mem, err := sysmem.Read()
	if err != nil {
		return nil
	}
	if bytes > mem.Available {
		return fmt.Errorf("%w: %d bytes are needed, but only %d of %d are available; hint: end other programs or set smaller limits",
			device.ErrMemory, bytes, mem.Available, mem.Total)
	}
	return nil
}

// Read copies bytes out of an arena. Call it between rounds only.
func (d *Device) Read(tier device.Tier, addr int64, p []byte) error {
	return d.transfer(tier, addr, p, false)
}

// Write copies bytes into an arena. Call it between rounds only.
func (d *Device) Write(tier device.Tier, addr int64, p []byte) error {
	return d.transfer(tier, addr, p, true)
}

func (d *Device) transfer(tier device.Tier, addr int64, p []byte, write bool) error {
	if tier >= device.NumTiers || addr < 0 || addr > d.arenas[tier].size || int64(len(p)) > d.arenas[tier].size-addr {
		return fmt.Errorf("%d bytes at %d are outside of the %s arena", len(p), addr, tier)
	}
	if tier == device.DiskTier {
		a := &DiskAccess{d.disk, alignedBytes(wholePages(addr%pageSize, len(p), bounceLen)), &d.meter} // no larger a buffer than it needs
		if write {
			return a.Write(p, addr)
		}
		return a.Read(p, addr)
	}
	memory := d.arenas[tier].bytes[addr:]
	if write {
		copyBytes(memory[:len(p)], p)
	} else {
		copyBytes(p, memory[:len(p)])
	}
	return nil
}

// Stats may be called between rounds.
func (d *Device) Stats() device.Stats {
	var sum device.Stats
	for _, s := range d.streams {
		for t := range sum.Peak {
			sum.Peak[t] = max(sum.Peak[t], s.stats.Peak[t])
			for to := range sum.Moved[t] {
				sum.Moved[t][to] += s.stats.Moved[t][to]
			}
		}
		sum.Worked[s.id] = s.stats.Worked[s.id]
		for op, n := range s.stats.Network {
			sum.Network[op] += n
		}
	}
	return sum
}

// Paint fills an arena with one value. With Highest it shows what a run touched
// independently of the run's own counters: tests paint, run and look.
func (d *Device) Paint(tier device.Tier, value byte) error {
	piece := alignedBytes(bounceLen)
	for i := range piece {
		piece[i] = value
	}
	for at := int64(0); at < d.arenas[tier].size; at += bounceLen {
		if err := d.Write(tier, at, piece[:min(bounceLen, d.arenas[tier].size-at)]); err != nil {
			return err
		}
	}
	return nil
}

// Highest returns the end of the highest byte of an arena that differs from
// value, 0 if none does.
func (d *Device) Highest(tier device.Tier, value byte) (int64, error) {
	piece := alignedBytes(bounceLen)
	for end := d.arenas[tier].size; end > 0; {
		at := (end - 1) / bounceLen * bounceLen
		p := piece[:end-at]
		if err := d.Read(tier, at, p); err != nil {
			return 0, err
		}
		for i := len(p) - 1; i >= 0; i-- {
			if p[i] != value {
				return at + int64(i) + 1, nil
			}
		}
		end = at
	}
	return 0, nil
}

// Close ends the streams and releases all memory. The arenas' bytes must not be used
// afterwards. Joined devices lose this one. While a call hangs, its memory cannot be
// released and remains until the process exits.
func (d *Device) Close() error {
	if d.options.Fabric != nil && d.refused == nil {
		d.options.Fabric.lose(d, errors.New("the device is closed"))
	}
	if d.under.Load() {
		return nil
	}
	for _, s := range d.streams {
		close(s.queue)
		<-s.ended
	}
	d.pool.Close()
	var errs []error
	for i := range d.arenas {
		if m := d.arenas[i].mapping; m != nil {
			errs = append(errs, unmapArena(m))
		}
		d.arenas[i] = arena{}
	}
	if d.disk != nil {
		errs = append(errs, d.disk.close())
		d.disk = nil
	}
	d.calls = nil
	return errors.Join(errs...)
}
