//go:build linux

package fake

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/athanor-llm/athanor/device/cuda/nv"
)

// firstContext is the context of card 0; the others' follow.
const firstContext = 77

// Codes that the fake returns.
const (
	invalidValue      = 1
	outOfMemory       = 2
	invalidContext    = 201
	invalidHandle     = 400
	alreadyRegistered = 712
	illegalAddress    = 700
	launchTimeout     = 702
	launchFailed      = 719
)

// GPU is one fake machine with some cards.
type GPU struct {
	// Cards is the number that cuDeviceGetCount returns.
	Cards int
	// Peers lets the cards access each other's memory.
	Peers bool
	// Major and Minor are the compute capability of all cards but the Old ones, which have a Pascal's.
	Major, Minor int
	Old          []int
	Integrated   int // 1: its memory is the host's
	// Fail has error codes for procedures, by the name of nv.Driver's field: calls
	// return them.
	Fail map[string]int32
	// Workspace is what products need, in bytes.
	Workspace int64
	// Algorithms are those that the matrix library offers for every product, its first choice first; nil:
	// it has one.
	Algorithms []Algorithm
	// Plain leaves only plain products: none derives an activation.
	Plain bool
	// Load, if not nil, prepares a module's code.
	Load func(image []byte) error
	// Kernel runs a kernel; if nil, kernels do nothing.
	Kernel func(image []byte, name string, grid, block [3]uint32, shared uint32, args []byte) error

	mu      sync.Mutex
	moved   *sync.Cond // an event or a stream made progress
	next    uintptr
	streams map[uintptr]*stream
	events  map[uintptr]*event
	modules modules
	memory  memory
	held    map[uintptr]int     // how often contexts are retained
	threads map[int]uintptr     // current context by thread
	driver  sync.RWMutex        // the driver's own lock, see makeRoom
	full    bool                // a call waits for room in a queue
	asleep  int                 // calls that wait for an event
	reaches map[[2]uintptr]bool // pairs of contexts: the first may access the second
	calls   []string
	lately  []int // numbers of the algorithms of products
	broken  int32 // an asynchronous error, which all later calls return
	failure error
}

// mostShared returns the most shared memory of a block, in bytes.
func (g *GPU) mostShared() int {
	if g.Major == 9 {
		return 227 << 10
	}
	return 100 << 10
}

// New returns a GPU. Its goroutines end with its streams.
func New() *GPU {
	g := &GPU{Cards: 1, Major: 9, Minor: 0, Fail: map[string]int32{}, next: 1000,
		streams: map[uintptr]*stream{}, events: map[uintptr]*event{}, held: map[uintptr]int{}, threads: map[int]uintptr{}, reaches: map[[2]uintptr]bool{}}
	g.modules = modules{gpu: g, images: map[uintptr][]byte{}, kernels: map[uintptr]kernelOf{}}
	g.memory = memory{gpu: g, blocks: map[uintptr][]byte{}, owners: map[uintptr]uintptr{}, pinned: map[uintptr]uintptr{}}
	g.moved = sync.NewCond(&g.mu)
	return g
}

// Calls returns the names of the procedures called so far.
func (g *GPU) Calls() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.calls...)
}

func (g *GPU) used(algorithm int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lately = append(g.lately, algorithm)
}

// Used returns the numbers of the algorithms of all products since the last call of Used.
func (g *GPU) Used() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := g.lately
	g.lately = nil
	return list
}

// Leaks returns an error that lists objects created and not destroyed, or nil.
func (g *GPU) Leaks() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for what, n := range map[string]int{"streams": len(g.streams), "events": len(g.events), "modules": len(g.modules.images), "allocations": len(g.memory.blocks), "contexts": len(g.held)} {
		if n > 0 {
			errs = append(errs, fmt.Errorf("%d %s", n, what))
		}
	}
	return errors.Join(errs...)
}

// pointer converts an argument to a pointer.
func pointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

func set[T any](p uintptr, v T) { *(*T)(pointer(p)) = v }

func bytesAt(p uintptr, n int) []byte { return unsafe.Slice((*byte)(pointer(p)), n) }

func stringAt(p uintptr) string {
	n := 0
	for *(*byte)(unsafe.Add(pointer(p), n)) != 0 {
		n++
	}
	return string(bytesAt(p, n))
}

// proc wraps a procedure: it counts, fails on demand, and checks the context.
func (g *GPU) proc(name string, free bool, f func(a []uintptr) int32) nv.Proc {
	return func(a ...uintptr) int32 {
		thread := threadID()
		g.driver.RLock()
		//lint:ignore SA2001 a call only waits until the driver is free
		g.driver.RUnlock()
		g.mu.Lock()
		g.calls = append(g.calls, name)
		code, has := g.Fail[name], g.threads[thread] != 0
		if code == 0 {
			code = g.broken
		}
		g.mu.Unlock()
		if code != 0 {
			return code
		}
		if !free && !has {
			return invalidContext
		}
		return f(a)
	}
}

// resting wraps a procedure that waits until the context is idle.
func (g *GPU) resting(name string, f func(a []uintptr) int32) nv.Proc {
	return g.proc(name, false, func(a []uintptr) int32 {
		if code := g.waitIdle(); code != 0 {
			return code
		}
		return f(a)
	})
}

func (g *GPU) handle() uintptr {
	g.next++
	return g.next
}

// current returns the context of the calling thread. The caller holds g.mu.
func (g *GPU) current() uintptr { return g.threads[threadID()] }

// Held waits until a call waits for room in a queue, or n calls wait for events.
func (g *GPU) Held(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.full && g.asleep < n {
		g.moved.Wait()
	}
}

// Break makes calls of a procedure return a code from now on; 0 restores it.
func (g *GPU) Break(proc string, code int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.Fail[proc] = code
}

// Limit bounds the bytes of host memory that can be registered together; 0: none.
func (g *GPU) Limit(bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.memory.limit = bytes
}

// Registered returns the sizes of registrations by address.
func (g *GPU) Registered() map[uintptr]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	sizes := map[uintptr]int{}
	for p := range g.memory.pinned {
		sizes[p] = len(g.memory.blocks[p])
	}
	return sizes
}

// Failure returns the error that stopped a kernel, or nil.
func (g *GPU) Failure() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failure
}

func (g *GPU) breakDown(code int32, err error) {
	g.mu.Lock()
	g.broken, g.failure = code, err
	g.mu.Unlock()
}

// Driver returns the fake's nv.Driver.
func (g *GPU) Driver() *nv.Driver {
	none := func([]uintptr) int32 { return 0 }
	d := &nv.Driver{
		Init:                     g.proc("Init", true, none),
		DriverGetVersion:         g.proc("DriverGetVersion", true, func(a []uintptr) int32 { set(a[0], int32(13000)); return 0 }),
		GetErrorString:           func(...uintptr) int32 { return invalidValue },
		DeviceGetCount:           g.proc("DeviceGetCount", true, func(a []uintptr) int32 { set(a[0], int32(g.Cards)); return 0 }),
		DeviceGet:                g.proc("DeviceGet", true, func(a []uintptr) int32 { set(a[0], int32(a[1])); return 0 }),
		DeviceGetName:            g.proc("DeviceGetName", true, func(a []uintptr) int32 { copy(bytesAt(a[0], int(a[1])), "Fake GPU\x00"); return 0 }),
		DeviceGetAttribute:       g.proc("DeviceGetAttribute", true, g.attribute),
		DeviceTotalMem:           g.proc("DeviceTotalMem", true, func(a []uintptr) int32 { set(a[0], uint64(1<<34)); return 0 }),
		DeviceGetPCIBusId:        g.proc("DeviceGetPCIBusId", true, func(a []uintptr) int32 { copy(bytesAt(a[0], int(a[1])), "0000:00:00.0\x00"); return 0 }),
		DevicePrimaryCtxRetain:   g.proc("DevicePrimaryCtxRetain", true, g.retain),
		DevicePrimaryCtxSetFlags: g.proc("DevicePrimaryCtxSetFlags", true, none),
		CtxSetCurrent: g.proc("CtxSetCurrent", true, func(a []uintptr) int32 {
			if a[0] < firstContext || a[0] >= firstContext+uintptr(g.Cards) {
				return invalidContext
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.held[a[0]] == 0 {
				return invalidContext
			}
			g.threads[threadID()] = a[0]
			return 0
		}),
	}
	d.DevicePrimaryCtxRelease = func(a ...uintptr) int32 { return g.release(a[0]) }
	d.DeviceCanAccessPeer = g.proc("DeviceCanAccessPeer", true, func(a []uintptr) int32 {
		set(a[0], int32(0))
		if g.Peers && a[1] != a[2] {
			set(a[0], int32(1))
		}
		return 0
	})
	d.CtxEnablePeerAccess = g.resting("CtxEnablePeerAccess", func(a []uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		pair := [2]uintptr{g.current(), a[0]}
		switch {
		case !g.Peers || pair[0] == pair[1]:
			return invalidValue
		case g.reaches[pair]:
			return nv.PeerEnabled
		}
		g.reaches[pair] = true
		return 0
	})
	g.streamProcs(d)
	g.memory.setProcs(d)
	g.modules.setProcs(d)
	return d
}

func (g *GPU) retain(a []uintptr) int32 {
	context := firstContext + a[1]
	g.mu.Lock()
	g.held[context]++
	g.mu.Unlock()
	set(a[0], context)
	return 0
}

// release ends a context that nobody retains any more, even a broken one: it takes its
// registrations with it, and threads have it no longer.
func (g *GPU) release(dev uintptr) int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, "DevicePrimaryCtxRelease")
	context := firstContext + dev
	if g.held[context] == 0 {
		return invalidContext
	}
	if g.held[context]--; g.held[context] > 0 {
		return 0
	}
	delete(g.held, context)
	g.broken = 0
	g.memory.endContext(context)
	for thread, current := range g.threads {
		if current == context {
			delete(g.threads, thread)
		}
	}
	return 0
}

func (g *GPU) attribute(a []uintptr) int32 {
	values := map[uintptr]int{nv.AttrIntegrated: g.Integrated, nv.AttrMajor: g.Major, nv.AttrMinor: g.Minor, nv.AttrSMs: 4, nv.AttrHostPointer: 1, nv.AttrSharedPerBlock: g.mostShared()}
	if slices.Contains(g.Old, int(a[2])) {
		values[nv.AttrMajor] = 6
	}
	set(a[0], int32(values[a[1]]))
	return 0
}
