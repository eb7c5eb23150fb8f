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
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/device/cuda/nv"
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

// Device implements device.Device.
type Device struct {
	options Options
	lib     *Libraries
	driver  *nv.Driver
	cache   kernels.Cache
	opened  time.Time
	name    string
	arch    string
	limits  struct{ shared, sms, major int }
	apart   bool // see target

	sizes     [device.NumTiers]int64
	memory    uintptr          // device arena
	workspace uintptr          // of the library, then scratch memory, then flags
	room      int64            // of scratch memory
	staging   uintptr          // for sums over ranks, if they need it
	reach     map[uintptr]bool // by context: whether kernels and copies here can access its memory directly
	host      *cpu.Arena       // of pinned
	pinned    *Pinned          // Options.Pinned, or the device's own; nil: no host arena
	disk      *cpu.Disk
	pool      *pool.Pool
	meter     cpu.Meter // of the host's streams
	modules   map[kernels.Unit]uintptr
	functions map[functionKey]function
	algos     map[algoKey]algorithm
	choices   map[choiceKey]algorithm // see tune.go
	tuneLeast int64                   // multiply-adds from which products are tuned
	plans     []*nv.Plan
	refused   map[string]bool // products that the library rejected, and why
	small     []*cpu.Arena    // registered: flags of host calls, a piece per Prepare, and the buffers of transfers
	bounce    [2][]byte       // buffers of transfers; nil until one is large
	shared    sharedCopy

	calls    []call
	launched []uint32        // round in which a call was launched
	issued   []atomic.Uint32 // round in which the worker passed a call to the driver
	round    atomic.Uint32
	hosts    [device.NumStreams]*hostStream // nil for the driver's streams
	work     worker
	ferry    *ferry // nil: no call has members on other hosts
	idle     sync.WaitGroup

	// For goroutines that wait for the worker to issue a call, or for a host call.
	mu      sync.Mutex
	changed *sync.Cond
	waiting atomic.Int32

	failed atomic.Bool
	err    error // first error of the round, under mu
	closed bool
}

// isHost reports whether goroutines run the stream.
func isHost(s device.Stream) bool {
	return s == device.HostCompute || s == device.DiskRead || s == device.DiskWrite
}

// GPU is one that this process sees and can use.
type GPU struct {
	Index int // in CUDA's order, as in Options
	Name  string
}

// GPUs returns those that can be used, in CUDA's order.
func GPUs() ([]GPU, error) {
	d, err := nv.OpenDriver(nv.Local())
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
			list = append(list, GPU{i, c.Name})
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
	d := &Device{
		options: o, lib: lib, driver: lib.Driver, opened: time.Now(),
		cache:   kernels.Cache{Dir: o.CacheDir, Compiler: lib.Compiler},
		pool:    pool.New(o.Workers),
		modules: map[kernels.Unit]uintptr{}, functions: map[functionKey]function{}, algos: map[algoKey]algorithm{}, choices: map[choiceKey]algorithm{}, tuneLeast: tuneTerms,
		reach: map[uintptr]bool{}, refused: map[string]bool{},
	}
	if o.Fabric != nil {
		d.opened = o.Fabric.opened
	}
	d.changed = sync.NewCond(&d.mu)
	d.round.Store(1)
	d.work.start(d)
	if err := d.work.do(d.open); err != nil {
		_ = d.work.do(d.release) // releases what was acquired so far
		d.work.stop()
		d.pool.Close()
		return nil, fmt.Errorf("GPU %d: %w", o.Index, err)
	}
	for id := range d.hosts {
		if s := device.Stream(id); isHost(s) {
			d.hosts[id] = d.newHostStream(s)
			go d.hosts[id].run()
		}
	}
	return d, nil
}

// open finds the GPU and creates context and streams, on the worker.
func (d *Device) open() error {
	n, err := d.find()
	if err != nil {
		return err
	}
	if err := d.createContext(n); err != nil {
		return err
	}
	if d.lib.Lt != nil {
		if err := d.lib.Lt.Check("Create", d.lib.Lt.Create(nv.Addr(&d.work.lt))); err != nil {
			return err
		}
	}
	d.reach[d.work.context] = true
	if d.options.Fabric != nil {
		return d.options.Fabric.join(d)
	}
	return nil
}

// find initialises the driver and returns the GPU's number. It sets what the compiler and kernels need
// to know about the GPU, and returns an error if kernels cannot run there.
func (d *Device) find() (int, error) {
	v := d.driver
	if err := v.Check("cuInit", v.Init(0)); err != nil {
		return 0, err
	}
	var count, dev int32
	if err := v.Check("cuDeviceGetCount", v.DeviceGetCount(nv.Addr(&count))); err != nil {
		return 0, err
	}
	if d.options.Index < 0 || d.options.Index >= int(count) {
		return 0, fmt.Errorf("this machine has %d (GPUs are counted from 0); hint: check CUDA_VISIBLE_DEVICES and nvidia-smi", count)
	}
	if err := v.Check("cuDeviceGet", v.DeviceGet(nv.Addr(&dev), uintptr(d.options.Index))); err != nil {
		return 0, err
	}
	n := int(dev)
	d.name = v.Name(n)
	major, minor := v.Attribute(n, nv.AttrMajor), v.Attribute(n, nv.AttrMinor)
	d.arch = d.lib.Compiler.Target(10*major + minor)
	d.limits.shared, d.limits.sms, d.limits.major = v.Attribute(n, nv.AttrSharedPerBlock), v.Attribute(n, nv.AttrSMs), major
	if major < 8 {
		return 0, fmt.Errorf("%s has compute capability %d.%d; hint: use a GPU of 8.0 (Ampere) or later", d.name, major, minor)
	}
	if v.Attribute(n, nv.AttrHostPointer) == 0 {
		return 0, fmt.Errorf("%s cannot use the host's addresses for pinned memory; hint: use another GPU, or device: cpu", d.name)
	}
	return n, nil
}

// createContext creates GPU n's context, its streams and the event that times count from.
func (d *Device) createContext(n int) (err error) {
	v, w := d.driver, &d.work
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
func (d *Device) Info() device.Info { return device.Info{Name: d.name, Cores: d.options.Workers} }

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
	err := device.CheckReserve(tier, bytes, d.sizes, len(d.calls))
	if err != nil || bytes == 0 {
		return err
	}
	switch tier {
	case device.DeviceTier:
		err = d.work.do(func() error { return d.allocate(bytes) })
	case device.HostTier:
		if d.pinned == nil { // otherwise an earlier attempt failed
			if d.pinned = d.options.Pinned; d.pinned == nil || !d.pinned.take() {
				d.pinned = &Pinned{}
			}
		}
		d.host, err = d.pinned.reserve(d.driver, d.work.device, bytes)
	case device.DiskTier:
		d.disk, err = cpu.OpenDisk(d.options.DiskPath, bytes)
	}
	if err != nil {
		return fmt.Errorf("reserve %s tier: %w", tier, err)
	}
	d.sizes[tier] = bytes
	return nil
}

func (d *Device) allocate(bytes int64) (err error) {
	v := d.driver
	if d.memory, err = v.Word("cuMemAlloc", v.MemAlloc, uintptr(bytes)); err != nil {
		return fmt.Errorf("allocate %d bytes on the GPU: %w", bytes, err)
	}
	d.room = scratchBytes
	if d.workspace, err = v.Word("cuMemAlloc", v.MemAlloc, Overhead); err != nil {
		return err
	}
	zero := make([]byte, relayBytes)
	err = v.Check("cuMemcpy", v.Memcpy(d.flagsAt(), nv.Addr(&zero[0]), relayBytes))
	runtime.KeepAlive(zero)
	if err != nil {
		return err
	}
	return v.Check("cuCtxSynchronize", v.CtxSynchronize()) // see transfer
}

// flagsAt returns the address of the flags. Kernels find them clear and leave them clear, except one
// that fails, but then the context is lost, and this memory with it.
func (d *Device) flagsAt() uintptr { return d.workspace + workspaceBytes + scratchBytes }

// address returns the address of memory outside Go's heap.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// base returns the address of an arena.
func (d *Device) base(t device.Tier) uintptr {
	switch {
	case t == device.DeviceTier:
		return d.memory
	case t == device.HostTier && d.host != nil:
		return address(d.host.Bytes())
	}
	return 0
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
	d.pool.Close()
	for _, a := range d.small {
		errs = append(errs, a.Close())
	}
	switch {
	case d.pinned == nil:
	case d.pinned == d.options.Pinned:
		errs = append(errs, d.pinned.give(lost != nil))
	default:
		errs = append(errs, d.pinned.Close())
	}
	if d.disk != nil {
		errs = append(errs, d.disk.Close())
	}
	d.sizes, d.calls, d.host, d.pinned, d.disk, d.small = [device.NumTiers]int64{}, nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// release releases the driver's objects in reverse order of creation.
func (d *Device) release() error {
	v, w := d.driver, &d.work
	if w.context == 0 {
		return nil
	}
	first := v.Check("cuCtxSynchronize", v.CtxSynchronize())
	if d.ferry != nil {
		d.ferry.stop()
	}
	if d.options.Fabric != nil {
		first = errors.Join(first, d.options.Fabric.leave(d))
	}
	for _, p := range d.plans {
		p.Close()
	}
	if w.lt != 0 {
		d.lib.Lt.Destroy(w.lt)
	}
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
	for _, m := range d.modules {
		v.ModuleUnload(m)
	}
	for _, a := range d.small {
		v.MemHostUnregister(address(a.Bytes()))
	}
	for _, p := range []uintptr{d.memory, d.workspace, d.staging} {
		if p != 0 {
			v.MemFree(p)
		}
	}
	v.DevicePrimaryCtxRelease(uintptr(w.device))
	return first
}

// fail records the first error of the round.
func (d *Device) fail(err error) {
	d.mu.Lock()
	if d.err == nil {
		d.err = err
	}
	d.failed.Store(true)
	d.mu.Unlock()
	if d.options.Fabric != nil {
		d.options.Fabric.lose(d, err)
	}
}

// milliseconds is a float that the driver writes.
type milliseconds struct{ bits uint32 }

func (m milliseconds) seconds() float64 { return float64(math.Float32frombits(m.bits)) / 1e3 }
