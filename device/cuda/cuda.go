// Package cuda runs programs on an NVIDIA GPU, without cgo. It opens libcuda, NVRTC and
// cublasLt when a device is opened; a machine without them only lacks this backend.
//
//	arenas    device: one cuMemAlloc. Host: mapped, touched and registered in
//	          slices, so that the GPU's copy engines reach it; it may outlive the
//	          device (Pinned). Disk: a file, as in the CPU backend
//	worker    one goroutine, locked to a thread that owns the context; it alone
//	          calls the driver, in program order
//	streams   compute and copies are the driver's; host compute and disk are
//	          goroutines, which run the CPU's kernels on the pinned arena
//	events    one per call. GPU to GPU: cuStreamWaitEvent. GPU to host:
//	          cuEventSynchronize. Host to GPU: a flag in pinned memory that
//	          the GPU's front end waits for (cuStreamWaitValue32), so that the
//	          worker does not have to
//
// Tune chooses the matrix library's algorithms (tune.go), while memory is free. Prepare
// compiles and loads kernels, creates descriptors and computes all arguments. After it, a
// call is a list of driver calls with their arguments in place, and a step allocates
// nothing.
package cuda

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/kernel/pool"
)

// Options configure a device.
type Options struct {
	// Index of the GPU among those that CUDA_VISIBLE_DEVICES exposes.
	Index int
	// Workers is the number of cores for host kernels; 0: GOMAXPROCS.
	Workers int
	// DiskPath is the file of the disk tier, created by Reserve.
	DiskPath string
	// CacheDir is where compiled kernels are cached; "": no cache.
	CacheDir string
	// Untimed disables the GPU's time stamps: spans of its calls stay zero.
	Untimed bool
	// Serial waits for the GPU after every call, so that a GPU error names its call. It
	// is for debugging.
	Serial bool
	// SumRows cuts products that sum over tokens into pieces of this many rows, so that
	// splitting the tokens at multiples of it changes no bit; 0: one piece, which is
	// faster.
	SumRows int
	// Fabric joins this GPU to others as rank Rank of it.
	Fabric *Fabric
	Rank   int
	// Pinned keeps the host arena from one device to the next; nil: it is allocated and pinned anew.
	Pinned *Pinned
}

// Libraries are the libraries of a device. Lt may be nil: then products run on the
// plain kernel.
type Libraries struct {
	Driver   *nv.Driver
	Compiler kernels.Compiler
	Lt       *nv.Lt
}

// Load opens the libraries present on this machine.
func Load() (*Libraries, error) {
	p := nv.Local()
	d, err := nv.OpenDriver(p)
	if err != nil {
		return nil, err
	}
	c, err := nv.OpenNVRTC(p)
	if err != nil {
		return nil, err
	}
	l, err := nv.OpenLt(p)
	if err != nil {
		return nil, err
	}
	return &Libraries{d, c, l}, nil
}

const (
	workspaceBytes = 32 << 20 // of cublasLt, what it asks for on Hopper
	scratchBytes   = 32 << 20 // partial sums
	relayBytes     = 4 << 10  // flags of blocks that continue each other's sums (kernels/relay.cuh)
	// Overhead is the device memory that a device takes besides its arena and the
	// driver's own.
	Overhead = workspaceBytes + scratchBytes + relayBytes
)

var _ interface {
	device.Device
	device.Meter
	device.Watched
	device.Aborter
	device.Refuser
	device.Clock
	device.Clearer
	device.Tuner
} = (*Device)(nil)

// Device implements device.Device. Its parts own what their methods use.
type Device struct {
	options    Options
	lib        *Libraries
	driver     *nv.Driver
	opened     time.Time
	chip       chip
	apart      bool // see target
	arenas     arenas
	registered registered
	copier     copier
	cache      kernels.Cache
	code       code
	library    library
	peers      peers

	calls    []call
	launched []uint32        // round in which a call was launched
	issued   []atomic.Uint32 // round in which the worker passed a call to the driver
	round    roundState
	work     worker
	hosts    [device.NumStreams]*hostStream // nil for the driver's streams
	meter    cpu.Meter                      // of the host's streams
	idle     sync.WaitGroup                 // streams of the host that have not ended the round
	ferry    *ferry                         // nil: no call has members on other hosts, or NCCL carries them
	wires    map[link.Meeting]*wire         // of NCCL
	unmade   int                            // wires that are being made; the fabric must be locked
	closing  bool                           // no more wires are made; the fabric must be locked
	closed   bool
}

// chip is what the compiler and kernels need to know about a GPU.
type chip struct {
	name, arch         string
	shared, sms, major int // shared memory of a block, SMs, compute capability
	capability         int // with the minor one, such as 89
}

// hopper reports whether kernels may use instructions exclusive to compute capability
// 9.0: compilers before CUDA 12 do not support them.
func (c *chip) hopper() bool { return c.major == 9 && strings.HasSuffix(c.arch, "90a") }

// isHost reports whether goroutines run the stream.
func isHost(s device.Stream) bool {
	return s == device.HostCompute || s == device.DiskRead || s == device.DiskWrite
}

// GPU is one that this process sees and can use.
type GPU struct {
	Index int // in CUDA's order, as in Options
	Name  string
	// Unified says that its memory is the host's.
	Unified bool
	BusID   string
}

// GPUs returns those that can be used, in CUDA's order.
func GPUs() ([]GPU, error) {
	d, err := nv.OpenDriver(nv.LocalDriver())
	if err != nil {
		return nil, err
	}
	return gpus(d)
}

func gpus(d *nv.Driver) (list []GPU, err error) {
	if err := d.Check("cuInit", d.Init(0)); err != nil {
		return nil, err
	}
	var n int32
	if err := d.Check("cuDeviceGetCount", d.DeviceGetCount(nv.Addr(&n))); err != nil {
		return nil, err
	}
	for i := range int(n) {
		c := card(d, i)
		if c.Problem == "" {
			list = append(list, GPU{i, c.Name, d.Attribute(i, nv.AttrIntegrated) == 1, c.BusID})
		} else {
			err = fmt.Errorf("%s: %s", c.Name, c.Problem)
		}
	}
	if len(list) > 0 {
		err = nil
	}
	return list, err
}

// Open opens a GPU with the libraries present on this machine.
func Open(o Options) (*Device, error) {
	lib, err := Load()
	if err != nil {
		return nil, err
	}
	return New(lib, o)
}

// New opens a GPU. Close releases its memory and goroutines.
func New(lib *Libraries, o Options) (*Device, error) {
	if o.Workers < 1 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	d := &Device{options: o, lib: lib, driver: lib.Driver, opened: time.Now(), cache: kernels.Cache{Dir: o.CacheDir, Compiler: lib.Compiler}}
	d.arenas.driver, d.registered.driver, d.copier.pool = d.driver, d.driver, pool.New(o.Workers)
	d.code = code{driver: d.driver, cache: &d.cache, modules: map[kernels.Unit]uintptr{}, functions: map[functionKey]function{}}
	d.library = library{lt: lib.Lt, chip: &d.chip, cache: &d.cache, algos: map[algoKey]algorithm{}, choices: map[choiceKey]algorithm{}, least: tuneTerms, refused: map[string]bool{}}
	d.peers.reach, d.wires = map[uintptr]bool{}, map[link.Meeting]*wire{}
	if o.Fabric != nil {
		d.opened = o.Fabric.opened
	}
	d.round.start()
	d.work.start(d)
	if err := d.work.do(d.open); err != nil {
		_ = d.work.do(d.release) // releases what was acquired so far
		d.work.stop()
		d.copier.pool.Close()
		return nil, fmt.Errorf("GPU %d: %w", o.Index, err)
	}
	for id := range d.hosts {
		if s := device.Stream(id); isHost(s) {
			d.hosts[id] = newHostStream(d, s)
			go d.hosts[id].run()
		}
	}
	return d, nil
}

// open finds the GPU and creates context and streams, on the worker.
func (d *Device) open() error {
	n, err := d.chip.find(d.lib, d.options.Index)
	if err != nil {
		return err
	}
	if err := d.work.createContext(n); err != nil {
		return err
	}
	if err := d.library.open(); err != nil {
		return err
	}
	d.peers.reach[d.work.context] = true
	if d.options.Fabric != nil {
		return d.options.Fabric.join(d)
	}
	return nil
}

// find initialises the driver and returns the GPU's number. It sets what the compiler and kernels need
// to know about the GPU, and returns an error if kernels cannot run there.
func (c *chip) find(lib *Libraries, index int) (int, error) {
	v := lib.Driver
	if err := v.Check("cuInit", v.Init(0)); err != nil {
		return 0, err
	}
	var count, dev int32
	if err := v.Check("cuDeviceGetCount", v.DeviceGetCount(nv.Addr(&count))); err != nil {
		return 0, err
	}
	if index < 0 || index >= int(count) {
		return 0, fmt.Errorf("this machine has %d (GPUs are counted from 0); hint: check CUDA_VISIBLE_DEVICES and nvidia-smi", count)
	}
	if err := v.Check("cuDeviceGet", v.DeviceGet(nv.Addr(&dev), uintptr(index))); err != nil {
		return 0, err
	}
	n := int(dev)
	c.name = v.Name(n)
	major, minor := v.Attribute(n, nv.AttrMajor), v.Attribute(n, nv.AttrMinor)
	c.arch = lib.Compiler.Target(10*major + minor)
	c.capability = 10*major + minor
	c.shared, c.sms, c.major = v.Attribute(n, nv.AttrSharedPerBlock), v.Attribute(n, nv.AttrSMs), major
	if major < 8 {
		return 0, fmt.Errorf("%s has compute capability %d.%d; hint: use a GPU of 8.0 (Ampere) or later", c.name, major, minor)
	}
	if v.Attribute(n, nv.AttrHostPointer) == 0 {
		return 0, fmt.Errorf("%s cannot use the host's addresses for pinned memory; hint: use another GPU, or device: cpu", c.name)
	}
	return n, nil
}

// createContext creates GPU n's context, its streams and the event that times count from.
func (w *worker) createContext(n int) (err error) {
	v := w.d.driver
	v.DevicePrimaryCtxSetFlags(uintptr(n), nv.CtxBlockingSync) // only a request: cores are for the optimizer
	if w.context, err = v.Word("cuDevicePrimaryCtxRetain", v.DevicePrimaryCtxRetain, uintptr(n)); err != nil {
		return err
	}
	w.device = n
	if err := v.Check("cuCtxSetCurrent", v.CtxSetCurrent(w.context)); err != nil {
		return err
	}
	for s := range w.streams {
		if isHost(device.Stream(s)) {
			continue
		}
		if w.streams[s], err = v.Word("cuStreamCreate", v.StreamCreate, nv.StreamNonBlocking); err != nil {
			return err
		}
	}
	w.base, err = v.Word("cuEventCreate", v.EventCreate, 0)
	return err
}

// Origin returns where the clock of spans begins.
func (d *Device) Origin() time.Time { return d.opened }

// Info describes the device.
func (d *Device) Info() device.Info { return device.Info{Name: d.chip.name, Cores: d.options.Workers} }

// SetClock implements device.Clock: a time stamp takes the GPU about a microsecond.
func (d *Device) SetClock(on bool) {
	_ = d.work.do(func() error {
		d.work.untimed = !on
		return nil
	})
}

// Memory returns the GPU's free and total memory in bytes.
func (d *Device) Memory() (free, total int64, err error) {
	err = d.work.do(func() error {
		return d.driver.Check("cuMemGetInfo", d.driver.MemGetInfo(nv.Addr(&free), nv.Addr(&total)))
	})
	return free, total, err
}

// Reserve reserves the arena of a tier.
func (d *Device) Reserve(tier device.Tier, bytes int64) error {
	a := &d.arenas
	err := device.CheckReserve(tier, bytes, a.sizes, len(d.calls))
	if err != nil || bytes == 0 {
		return err
	}
	switch tier {
	case device.DeviceTier:
		err = d.work.do(func() error { return a.allocate(bytes) })
	case device.HostTier:
		if a.pinned == nil { // otherwise an earlier attempt failed
			if a.pinned = d.options.Pinned; a.pinned == nil || !a.pinned.take() {
				a.pinned = &Pinned{}
			}
		}
		a.host, err = a.pinned.reserve(d.driver, d.work.device, bytes)
	case device.DiskTier:
		a.disk, err = cpu.OpenDisk(d.options.DiskPath, bytes)
	}
	if err != nil {
		return fmt.Errorf("reserve %s tier: %w", tier, err)
	}
	a.sizes[tier] = bytes
	return nil
}

// Stats may be called between rounds.
func (d *Device) Stats() device.Stats {
	sum := d.work.stats
	if d.ferry != nil {
		sum.Issued += d.ferry.issued.Load()
	}
	for _, s := range d.hosts {
		if s == nil {
			continue
		}
		for t := range sum.Peak {
			sum.Peak[t] = max(sum.Peak[t], s.stats.Peak[t])
			for to := range sum.Moved[t] {
				sum.Moved[t][to] += s.stats.Moved[t][to]
			}
		}
	}
	return sum
}

// Close stops the goroutines and releases all memory.
func (d *Device) Close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	for _, s := range d.hosts {
		if s != nil {
			close(s.queue)
			<-s.ended
		}
	}
	lost := d.work.do(d.release)
	errs := []error{lost}
	d.work.stop()
	d.copier.pool.Close()
	errs = append(errs, d.registered.close(), d.arenas.close(d.options.Pinned, lost != nil))
	d.calls = nil
	return errors.Join(errs...)
}

// release releases the driver's objects in reverse order of creation.
func (d *Device) release() error {
	v, w := d.driver, &d.work
	if w.context == 0 {
		return nil
	}
	if len(d.wires) > 0 {
		d.settleWires()
	}
	first := v.Check("cuCtxSynchronize", v.CtxSynchronize())
	if d.ferry != nil {
		d.ferry.stop()
	}
	if len(d.wires) > 0 {
		d.closeWires()
	}
	if d.options.Fabric != nil {
		first = errors.Join(first, d.options.Fabric.leave(d))
	}
	d.library.close()
	for i := range d.calls {
		for _, e := range []uintptr{d.calls[i].start, d.calls[i].stop, d.calls[i].end} {
			if e != 0 {
				v.EventDestroy(e)
			}
		}
	}
	if w.base != 0 {
		v.EventDestroy(w.base)
	}
	for _, s := range w.streams {
		if s != 0 {
			v.StreamDestroy(s)
		}
	}
	d.code.unload()
	d.registered.unpin()
	d.arenas.free()
	if d.peers.staging != 0 {
		v.MemFree(d.peers.staging)
	}
	v.DevicePrimaryCtxRelease(uintptr(w.device))
	return first
}

// fail records an error of the round, and joined devices lose this one.
func (d *Device) fail(err error) {
	d.round.fail(err)
	if d.options.Fabric != nil {
		d.options.Fabric.lose(d, err)
	}
}

// milliseconds is a float that the driver writes.
type milliseconds struct{ bits uint32 }

func (m milliseconds) seconds() float64 { return float64(math.Float32frombits(m.bits)) / 1e3 }
