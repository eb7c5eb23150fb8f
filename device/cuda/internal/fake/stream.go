//go:build linux

package fake

import (
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device/cuda/nv"
)

type stream struct {
	queue   chan func()
	context uintptr
	sent    int
	done    int
}

func (st *stream) idle() bool { return st.done == st.sent }

// event is a CUDA event: recorded counts its records, done those that the stream has
// reached.
type event struct {
	context        uintptr
	recorded, done int
	at             time.Time
}

// queueDepth is the capacity of a stream's queue. The driver has room for about this
// many kernels; a call that finds the queue full waits for room while holding a lock
// that calls of all threads need.
const queueDepth = 1024

// waitIdle waits until all streams of the current context are idle, or times out. In the
// driver, procedures that allocate or load may wait like this; here they always do.
func (g *GPU) waitIdle() int32 {
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

// streamProcs sets the procedures of streams and events.
func (g *GPU) streamProcs(d *nv.Driver) {
	d.StreamCreate = g.proc("StreamCreate", false, g.streamCreate)
	d.StreamDestroy = g.proc("StreamDestroy", false, g.streamDestroy)
	d.StreamSynchronize = g.proc("StreamSynchronize", false, g.streamSynchronize)
	d.CtxSynchronize = g.proc("CtxSynchronize", false, g.ctxSynchronize)
	d.StreamWaitValue32 = g.proc("StreamWaitValue32", false, g.streamWaitValue32)
	d.StreamWriteValue32 = g.proc("StreamWriteValue32", false, g.streamWriteValue32)
	d.EventCreate = g.proc("EventCreate", false, g.eventCreate)
	d.EventDestroy = g.proc("EventDestroy", false, g.eventDestroy)
	d.EventRecord = g.proc("EventRecord", false, g.eventRecord)
	d.EventQuery = g.proc("EventQuery", false, g.eventQuery)
	d.EventSynchronize = g.proc("EventSynchronize", false, g.eventSynchronize)
	d.StreamWaitEvent = g.proc("StreamWaitEvent", false, g.streamWaitEvent)
	d.EventElapsedTime = g.proc("EventElapsedTime", false, g.eventElapsedTime)
}

func (g *GPU) streamCreate(a []uintptr) int32 {
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
}

func (g *GPU) streamDestroy(a []uintptr) int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := g.streams[a[0]]
	if st == nil {
		return invalidHandle
	}
	delete(g.streams, a[0])
	close(st.queue)
	return 0
}

func (g *GPU) streamSynchronize(a []uintptr) int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := g.streams[a[0]]
	if st == nil {
		return invalidHandle
	}
	for !st.idle() {
		g.moved.Wait()
	}
	return g.broken
}

func (g *GPU) ctxSynchronize([]uintptr) int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, st := range g.streams {
		for st.context == g.current() && !st.idle() {
			g.moved.Wait()
		}
	}
	return g.broken
}

func (g *GPU) streamWaitValue32(a []uintptr) int32 {
	if a[3] > nv.WaitEqual || !g.memory.insideLocked(a[1], 4) {
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
}

func (g *GPU) streamWriteValue32(a []uintptr) int32 {
	if a[3] != 0 || !g.memory.insideLocked(a[1], 4) {
		return invalidValue
	}
	word, value := (*atomic.Uint32)(pointer(a[1])), uint32(a[2])
	return g.push(a[0], func() { word.Store(value) })
}

func (g *GPU) eventCreate(a []uintptr) int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.handle()
	g.events[h] = &event{context: g.current()}
	set(a[0], h)
	return 0
}

func (g *GPU) eventDestroy(a []uintptr) int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.events, a[0])
	return 0
}

func (g *GPU) eventRecord(a []uintptr) int32 {
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
}

func (g *GPU) eventQuery(a []uintptr) int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.events[a[0]]; e == nil {
		return invalidHandle
	} else if e.done < e.recorded {
		return nv.NotReady
	}
	return 0
}

func (g *GPU) eventSynchronize(a []uintptr) int32 {
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
}

func (g *GPU) streamWaitEvent(a []uintptr) int32 {
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
}

func (g *GPU) eventElapsedTime(a []uintptr) int32 {
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
}
