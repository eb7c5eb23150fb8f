//go:build linux

package fake

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/athanor-llm/athanor/device/cuda/nv"
)

// firstContext is the context of card 0; the others' follow.
const firstContext = 77

// Codes that the fake returns.
const (
	invalidValue   = 1
	invalidContext = 201
	invalidHandle  = 400
	illegalAddress = 700
	launchTimeout  = 702
	launchFailed   = 719
)

// GPU is one fake machine with some cards.
type GPU struct {
	// Cards is the number that cuDeviceGetCount returns.
	Cards int
	// Peers lets the cards access each other's memory.
	Peers bool
	// Major and Minor are the compute capability.
	Major, Minor int
	// Fail has error codes for procedures, by the name of nv.Driver's field: calls
	// return them.
	Fail map[string]int32
	// Workspace is what products need, in bytes.
	Workspace int64
	// Load, if not nil, prepares a module's code.
	Load func(image []byte) error
	// Kernel runs a kernel; if nil, kernels do nothing.
	Kernel func(image []byte, name string, grid, block [3]uint32, shared uint32, args []byte) error

	mu      sync.Mutex
	moved   *sync.Cond // an event or a stream made progress
	next    uintptr
	streams map[uintptr]*stream
	events  map[uintptr]*event
	images  map[uintptr][]byte
	kernels map[uintptr]kernelOf
	memory  map[uintptr][]byte  // allocated or registered, by address
	owners  map[uintptr]uintptr // contexts of allocations
	threads map[int]uintptr     // current context by thread
	driver  sync.RWMutex        // the driver's own lock, see makeRoom
	full    bool                // a call waits for room in a queue
	asleep  int                 // calls that wait for an event
	reaches map[[2]uintptr]bool // pairs of contexts: the first may access the second
	calls   []string
	broken  int32 // an asynchronous error, which all later calls return
	failure error
}

type stream struct {
	queue   chan func()
	context uintptr
	sent    int
	done    int
}

// event is a CUDA event: recorded counts its records, done those that the stream has
// reached.
type event struct {
	context        uintptr
	recorded, done int
	at             time.Time
}

type kernelOf struct {
	image  []byte
	name   string
	shared uint32 // most dynamic shared memory that a launch may request
}

// mostShared returns the most shared memory of a block, in bytes.
func (g *GPU) mostShared() int {
	if g.Major == 9 {
		return 227 << 10
	}
	return 100 << 10
}

// queueDepth is the capacity of a stream's queue. The driver has room for about this
// many kernels; a call that finds the queue full waits for room while holding a lock
// that calls of all threads need.
const queueDepth = 1024

// New returns a GPU. Its goroutines end with its streams.
func New() *GPU {
	g := &GPU{Cards: 1, Major: 9, Minor: 0, Fail: map[string]int32{}, next: 1000,
		streams: map[uintptr]*stream{}, events: map[uintptr]*event{}, images: map[uintptr][]byte{},
		kernels: map[uintptr]kernelOf{}, memory: map[uintptr][]byte{}, owners: map[uintptr]uintptr{}, threads: map[int]uintptr{}, reaches: map[[2]uintptr]bool{}}
	g.moved = sync.NewCond(&g.mu)
	return g
}

// Calls returns the names of the procedures called so far.
func (g *GPU) Calls() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.calls...)
}

// Leaks returns an error that lists objects created and not destroyed, or nil.
func (g *GPU) Leaks() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for what, n := range map[string]int{"streams": len(g.streams), "events": len(g.events), "modules": len(g.images), "allocations": len(g.memory)} {
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
		if code := g.rest(); code != 0 {
			return code
		}
		return f(a)
	})
}

func (g *GPU) handle() uintptr {
	g.next++
	return g.next
}

// inside reports whether n bytes at p lie in one allocation.
func (g *GPU) inside(p, n uintptr) bool {
	for base, b := range g.memory {
		if p >= base && n <= uintptr(len(b)) && p-base <= uintptr(len(b))-n {
			return true
		}
	}
	return false
}

// current returns the context of the calling thread. The caller holds g.mu.
func (g *GPU) current() uintptr { return g.threads[threadID()] }

// rest waits until all streams of the current context are idle, or times out. In the
// driver, procedures that allocate or load may wait like this; here they always do.
func (g *GPU) rest() int32 {
	for range 5000 {
		busy := false
		g.mu.Lock()
		for _, st := range g.streams {
			busy = busy || st.context == g.current() && st.done < st.sent
		}
		g.mu.Unlock()
		if !busy {
			return 0
		}
		time.Sleep(time.Millisecond)
	}
	return launchTimeout
}

// push appends work to a stream of the current context.
func (g *GPU) push(s uintptr, f func()) int32 {
	g.mu.Lock()
	st := g.streams[s]
	if st == nil || st.context != g.current() {
		g.mu.Unlock()
		return invalidHandle
	}
	room := st.sent-st.done < queueDepth
	g.mu.Unlock()
	if !room && !g.makeRoom(st) {
		return launchTimeout
	}
	g.mu.Lock()
	st.sent++
	g.mu.Unlock()
	st.queue <- f
	return 0
}

// makeRoom waits until there is room in a stream's queue, or times out.
func (g *GPU) makeRoom(st *stream) bool {
	g.driver.Lock()
	defer g.driver.Unlock()
	full := func(is bool) (room bool) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.full = is
		g.moved.Broadcast()
		return st.sent-st.done < queueDepth
	}
	defer full(false)
	for range 5000 {
		if full(true) {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

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
		DevicePrimaryCtxRetain:   g.proc("DevicePrimaryCtxRetain", true, func(a []uintptr) int32 { set(a[0], firstContext+a[1]); return 0 }),
		DevicePrimaryCtxRelease:  g.proc("DevicePrimaryCtxRelease", true, none),
		DevicePrimaryCtxSetFlags: g.proc("DevicePrimaryCtxSetFlags", true, none),
		CtxSetCurrent: g.proc("CtxSetCurrent", true, func(a []uintptr) int32 {
			if a[0] < firstContext || a[0] >= firstContext+uintptr(g.Cards) {
				return invalidContext
			}
			g.mu.Lock()
			g.threads[threadID()] = a[0]
			g.mu.Unlock()
			return 0
		}),
	}
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
	g.memoryProcs(d)
	g.codeProcs(d)
	return d
}

func (g *GPU) attribute(a []uintptr) int32 {
	values := map[uintptr]int{nv.AttrMajor: g.Major, nv.AttrMinor: g.Minor, nv.AttrSMs: 4, nv.AttrHostPointer: 1, nv.AttrSharedPerBlock: g.mostShared()}
	set(a[0], int32(values[a[1]]))
	return 0
}

// streamProcs sets the procedures of streams and events.
func (g *GPU) streamProcs(d *nv.Driver) {
	d.StreamCreate = g.proc("StreamCreate", false, func(a []uintptr) int32 {
		st := &stream{queue: make(chan func(), 1<<14)}
		g.mu.Lock()
		st.context = g.current()
		h := g.handle()
		g.streams[h] = st
		g.mu.Unlock()
		go func() {
			for f := range st.queue {
				f()
				g.mu.Lock()
				st.done++
				g.moved.Broadcast()
				g.mu.Unlock()
			}
		}()
		set(a[0], h)
		return 0
	})
	d.StreamDestroy = g.proc("StreamDestroy", false, func(a []uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		st := g.streams[a[0]]
		if st == nil {
			return invalidHandle
		}
		delete(g.streams, a[0])
		close(st.queue)
		return 0
	})
	idle := func(st *stream) bool { return st.done == st.sent }
	d.StreamSynchronize = g.proc("StreamSynchronize", false, func(a []uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		st := g.streams[a[0]]
		if st == nil {
			return invalidHandle
		}
		for !idle(st) {
			g.moved.Wait()
		}
		return g.broken
	})
	d.CtxSynchronize = g.proc("CtxSynchronize", false, func([]uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, st := range g.streams {
			for st.context == g.current() && !idle(st) {
				g.moved.Wait()
			}
		}
		return g.broken
	})
	d.StreamWaitValue32 = g.proc("StreamWaitValue32", false, func(a []uintptr) int32 {
		if a[3] > nv.WaitEqual || !g.insideLocked(a[1], 4) {
			return invalidValue
		}
		word, want, equal := (*atomic.Uint32)(pointer(a[1])), uint32(a[2]), a[3] == nv.WaitEqual
		return g.push(a[0], func() {
			for {
				if v := word.Load(); v == want || !equal && int32(v-want) >= 0 {
					return
				}
				time.Sleep(20 * time.Microsecond) // the GPU's front end polls too
			}
		})
	})
	d.StreamWriteValue32 = g.proc("StreamWriteValue32", false, func(a []uintptr) int32 {
		if a[3] != 0 || !g.insideLocked(a[1], 4) {
			return invalidValue
		}
		word, value := (*atomic.Uint32)(pointer(a[1])), uint32(a[2])
		return g.push(a[0], func() { word.Store(value) })
	})
	d.EventCreate = g.proc("EventCreate", false, func(a []uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		h := g.handle()
		g.events[h] = &event{context: g.current()}
		set(a[0], h)
		return 0
	})
	d.EventDestroy = g.proc("EventDestroy", false, func(a []uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.events, a[0])
		return 0
	})
	d.EventRecord = g.proc("EventRecord", false, func(a []uintptr) int32 {
		g.mu.Lock()
		e := g.events[a[0]]
		if e == nil || e.context != g.current() {
			g.mu.Unlock()
			return invalidHandle
		}
		e.recorded++
		n := e.recorded
		g.mu.Unlock()
		return g.push(a[1], func() {
			g.mu.Lock()
			e.done, e.at = max(e.done, n), time.Now()
			g.moved.Broadcast()
			g.mu.Unlock()
		})
	})
	d.EventQuery = g.proc("EventQuery", false, func(a []uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		if e := g.events[a[0]]; e == nil {
			return invalidHandle
		} else if e.done < e.recorded {
			return nv.NotReady
		}
		return 0
	})
	d.EventSynchronize = g.proc("EventSynchronize", false, func(a []uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		e := g.events[a[0]]
		if e == nil {
			return invalidHandle
		}
		g.asleep++
		g.moved.Broadcast()
		for n := e.recorded; e.done < n; {
			g.moved.Wait()
		}
		g.asleep--
		return g.broken
	})
	d.StreamWaitEvent = g.proc("StreamWaitEvent", false, func(a []uintptr) int32 {
		g.mu.Lock()
		e := g.events[a[1]]
		if e == nil {
			g.mu.Unlock()
			return invalidHandle
		}
		n := e.recorded // later records do not count
		g.mu.Unlock()
		return g.push(a[0], func() {
			g.mu.Lock()
			for e.done < n {
				g.moved.Wait()
			}
			g.mu.Unlock()
		})
	})
	d.EventElapsedTime = g.proc("EventElapsedTime", false, func(a []uintptr) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		from, to := g.events[a[1]], g.events[a[2]]
		switch {
		case from == nil || to == nil || from.recorded == 0 || to.recorded == 0:
			return invalidHandle
		case from.done < from.recorded || to.done < to.recorded:
			return nv.NotReady
		}
		set(a[0], float32(to.at.Sub(from.at).Seconds()*1e3))
		return 0
	})
}

func (g *GPU) insideLocked(p, n uintptr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inside(p, n)
}
