package cuda

import (
	"bytes"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/pool"
)

// The ferry carries bytes between a GPU and ranks of other processes.
//
// A call's stream sets a flag when it is ready and waits for another until the ferry is done: a few
// driver calls, however many bytes there are. So the worker never waits for the network, and no stream
// has thousands of copies queued. The ferry is a goroutine. It has the GPU copy blocks to pinned slots
// and sends them, and it receives others and has the GPU copy or add them, on a stream of its own that
// waits for nothing.
//
//	call's stream  [ready = 3][wait: begun >= 3][start][wait: done >= 3] ....... [next rendezvous]
//	ferry            sees it            begun = 3                       done = 3
//	out              header > [copy to slot][landed = 9] > [copy] >
//	in                     header > .. > [copy from slot][landed = 5] > [copy, sum]
//
// A lane belongs to one of the streams of calls; its voyages come in order. All lanes share the
// goroutine, so it never waits within one: it looks at each, does what can be done now, and looks at
// the next. When nothing can be done it yields, and after a while it sleeps between looks; without a
// voyage it sleeps until the worker has one.
//
// Invariants: an outgoing slot is refilled only when all of it has been sent, an incoming one only when
// the GPU has copied it. When the fabric is lost the ferry ends and abandons what it carries; the flags
// that streams wait for are raised like all others.
//
// Known weakness: while a voyage is under way, looking keeps a core busy for some of the time, and a
// ferry that sleeps between looks begins up to 10 ms late if kernels keep all cores busy.

// voyage is what one phase of an exchange sends to members elsewhere and receives from them.
type voyage struct {
	lane    *lane
	ranks   []int // of the members
	op      graph.Op
	outs    []step // blocks, and what is copied and added here in between
	ins     []step // blocks, and what is copied and added here in between
	headers int    // number of blocks at the start of ins that are headers
	call    int32
}

// slots is the length of a ring: two, and two more for whoever is late.
const slots = 4

// ring has the slots of one direction.
type ring struct {
	slots  [slots][]byte
	asked  uint32         // copies passed to the driver
	landed *atomic.Uint32 // copies that the GPU has made; in pinned memory
	sent   uint32         // slots that have been sent
}

// lane carries the voyages of one stream of calls.
type lane struct {
	ferry  *ferry
	queue  chan *voyage
	passed uint32 // voyages passed to the driver; the worker's

	// In pinned memory: the number of voyages that the stream has come to, of those for which all
	// members have arrived, and of those that are over.
	ready, begun, done *atomic.Uint32

	// Of the voyage under way.
	voyage  *voyage // nil: none
	out, in ring
	copied  int  // blocks whose copies to slots the driver has been given
	sent    int  // blocks that have been sent
	sending bool // the next one is in its pipe
	taken   int  // steps that the driver has been given
	got     int  // bytes received of the incoming block
	last    bool // the driver has been given everything, and the mark after it
}

// ferry belongs to a device.
type ferry struct {
	d       *Device
	stream  uintptr
	lanes   [device.NumStreams]*lane // nil: no calls between ranks
	wake    chan struct{}
	stopped atomic.Bool
	ended   chan struct{}
	blocks  atomic.Uint64 // received
	issued  atomic.Int64  // driver calls
	inside  bool          // see enter
	words   [4]uintptr    // arguments of the current one: a new list would be allocated
}

// startFerry makes the ferry, on the worker.
func startFerry(d *Device) (f *ferry, err error) {
	f = &ferry{d: d, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	for _, s := range []device.Stream{device.Collective, device.Send, device.Recv} {
		if f.lanes[s], err = f.newLane(); err != nil {
			return nil, err
		}
	}
	if f.stream, err = d.driver.Word("cuStreamCreate", d.driver.StreamCreate, nv.StreamNonBlocking); err != nil {
		return nil, err
	}
	go f.run()
	return f, nil
}

// newLane makes a lane.
func (f *ferry) newLane() (*lane, error) {
	l := &lane{ferry: f, queue: make(chan *voyage, queueLen)}
	fabric := f.d.options.Fabric
	for _, word := range []**atomic.Uint32{&l.ready, &l.begun, &l.done, &l.out.landed, &l.in.landed} {
		fabric.mu.Lock()
		flag, err := fabric.flag()
		fabric.mu.Unlock()
		if err != nil {
			return nil, err
		}
		*word = flag
	}
	for _, r := range []*ring{&l.out, &l.in} {
		b, err := f.d.registered.pin(slots * fabric.slot)
		if err != nil {
			return nil, err
		}
		for i := range r.slots {
			r.slots[i] = b[int64(i)*fabric.slot:][:fabric.slot]
		}
	}
	return l, nil
}

// stop ends the ferry, on the worker, when no call's stream waits for it any more.
func (f *ferry) stop() {
	f.stopped.Store(true)
	f.rouse()
	<-f.ended
	f.d.driver.StreamSynchronize(f.stream) // if this fails, so did synchronising the context
	f.d.driver.StreamDestroy(f.stream)
}

// rouse wakes the ferry, or has it look once more before it sleeps.
func (f *ferry) rouse() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// embark passes a voyage to the ferry. The call's stream says when it may begin.
func (w *worker) embark(n int32, c *call, v *voyage) error {
	l := v.lane
	l.passed++
	v.call = n
	l.queue <- v
	l.ferry.rouse()
	return w.ask("cuStreamWriteValue32", w.d.driver.StreamWriteValue32, w.streams[c.stream], flagAddress(l.ready), uintptr(l.passed), 0)
}

// attend makes the call's stream wait until a flag of the lane has reached the latest voyage.
func (w *worker) attend(c *call, l *lane, flag *atomic.Uint32) error {
	return w.ask("cuStreamWaitValue32", w.d.driver.StreamWaitValue32, w.streams[c.stream], flagAddress(flag), uintptr(l.passed), nv.WaitAtLeast)
}

// run carries voyages until the ferry is stopped or the fabric is lost.
func (f *ferry) run() {
	defer close(f.ended)
	defer f.leave()
	began := time.Now() // when looking in vain began
	for looks := 0; !f.stopped.Load() && !f.d.options.Fabric.down.Load(); looks++ {
		moved, waiting := false, false
		for _, l := range f.lanes {
			if l == nil {
				continue
			}
			m, err := l.look()
			if err != nil {
				f.d.fail(err)
				return
			}
			moved, waiting = moved || m, waiting || l.voyage != nil
		}
		f.leave()
		switch {
		case moved:
			began = time.Now()
		case !waiting:
			<-f.wake
			began = time.Now()
		default:
			linger(began, looks)
		}
	}
}

// enter gives the goroutine a thread with the GPU's context, which driver calls need, until leave. It
// does not keep the thread: yielding while locked to one goes through the system's scheduler, which
// takes many times as long as Go's.
func (f *ferry) enter() error {
	if f.inside {
		return nil
	}
	runtime.LockOSThread()
	f.inside = true
	words := append(f.words[:0], f.d.work.context)
	return f.d.driver.Check("cuCtxSetCurrent", f.d.driver.CtxSetCurrent(words...))
}

func (f *ferry) leave() {
	if f.inside {
		runtime.UnlockOSThread()
		f.inside = false
	}
}

const (
	// lingerLooks is how long the ferry looks without a pause; then it sleeps for lingerSleep between
	// looks, which Go turns into up to a millisecond where nothing else runs.
	lingerLooks = 20 * time.Millisecond
	lingerSleep = 50 * time.Microsecond
)

// linger yields the core until the next look; nothing has happened since began.
func linger(began time.Time, looks int) {
	switch {
	case time.Since(began) > lingerLooks:
		time.Sleep(lingerSleep)
	case looks%16 == 0:
		pool.GiveWay()
	default:
		runtime.Gosched()
	}
}

// look does what can be done for the voyage under way, and reports whether that is anything.
func (l *lane) look() (moved bool, err error) {
	if l.voyage == nil {
		select {
		case l.voyage = <-l.queue:
			l.copied, l.sent, l.taken, l.last = 0, 0, 0, false
		default:
			return false, nil
		}
	}
	next := l.done.Load() + 1
	if int32(l.ready.Load()-next) < 0 {
		return false, nil
	}
	a, err := l.send()
	if err != nil {
		return a, err
	}
	b, err := l.receive()
	if err != nil {
		return b, err
	}
	if l.taken >= l.voyage.headers {
		l.begun.Store(next)
	}
	if l.sent == len(l.voyage.outs) && l.last && l.in.landed.Load() == l.in.asked {
		l.voyage = nil
		l.done.Store(next)
		return true, nil
	}
	return a || b, nil
}

// send has blocks copied to free slots, and sends those that have been copied.
func (l *lane) send() (moved bool, err error) {
	v, r := l.voyage, &l.out
	for l.copied < len(v.outs) && r.asked-r.sent < slots {
		b := v.outs[l.copied].block
		if b.header != nil {
			copy(r.slots[r.asked%slots], b.header)
		} else if err := l.copy(b, r.slots[r.asked%slots], false); err != nil {
			return moved, err
		}
		if err := l.mark(r); err != nil {
			return moved, err
		}
		l.copied++
		moved = true
	}
	for r.sent != r.asked && int32(r.landed.Load()-r.sent) > 0 {
		b := v.outs[l.sent].block
		if !l.sending {
			b.pipe.Send(r.slots[r.sent%slots][:b.bytes])
			l.sending = true
		}
		n, left, err := b.pipe.Pump()
		if err != nil {
			return moved, l.gone(b, err)
		}
		if moved = moved || n > 0; left {
			break
		}
		l.sending = false
		l.sent++
		r.sent++
	}
	return moved, nil
}

// receive receives blocks into free slots, has the GPU copy them from there, and has it do what comes
// in between.
func (l *lane) receive() (moved bool, err error) {
	v, r := l.voyage, &l.in
	for l.taken < len(v.ins) {
		s := &v.ins[l.taken]
		if s.block == nil {
			if err := l.ferry.enter(); err != nil {
				return moved, l.blame(err)
			}
			l.ferry.issued.Add(1)
			if code := s.proc(s.args...); code != nv.Success {
				return moved, l.blame(s.explain(code))
			}
		} else if in, n, err := l.take(s.block); err != nil || !in {
			return moved || n > 0, err
		}
		l.taken++
		moved = true
	}
	if !l.last {
		l.last, moved = true, true
		err = l.mark(r)
	}
	return moved, err
}

// take reads what has arrived of a block. It reports whether that completes it, and how many bytes came
// now.
func (l *lane) take(b *block) (all bool, n int, err error) {
	r := &l.in
	if r.asked-r.landed.Load() >= slots {
		return false, 0, nil
	}
	slot := r.slots[r.asked%slots]
	if n, err = b.pipe.Receive(slot[l.got:b.bytes]); err != nil {
		return false, n, l.gone(b, err)
	}
	if l.got += n; int64(l.got) < b.bytes {
		return false, n, nil
	}
	l.got = 0
	l.ferry.blocks.Add(1)
	if b.header != nil {
		if !bytes.Equal(slot[:b.bytes], b.header) {
			return false, n, l.blame(fmt.Errorf("rank %d is at another call; hint: all ranks must launch their calls in the order of preparation", l.voyage.ranks[b.member]))
		}
		return true, n, nil
	}
	if err := l.copy(b, slot, true); err != nil {
		return false, n, err
	}
	return true, n, l.mark(r)
}

// copy has the GPU copy a block from a slot or to it.
func (l *lane) copy(b *block, slot []byte, in bool) error {
	f, v := l.ferry, l.ferry.d.driver
	src, dst, from, to := b.at, address(slot), b.pitch, b.width
	if in {
		src, dst, from, to = dst, src, to, from
	}
	if b.rows == nil {
		return l.ask("cuMemcpyAsync", v.MemcpyAsync, dst, src, uintptr(b.bytes), f.stream)
	}
	b.rows.Src, b.rows.Dst, b.rows.SrcPitch, b.rows.DstPitch = uint64(src), uint64(dst), uint64(from), uint64(to)
	return l.ask("cuMemcpy2DAsync", v.Memcpy2DAsync, nv.Addr(b.rows), f.stream)
}

// mark has the GPU signal that everything it has been asked for so far is done.
func (l *lane) mark(r *ring) error {
	r.asked++
	return l.ask("cuStreamWriteValue32", l.ferry.d.driver.StreamWriteValue32, l.ferry.stream, flagAddress(r.landed), uintptr(r.asked), 0)
}

// ask calls a procedure with up to four words.
func (l *lane) ask(name string, p nv.Proc, words ...uintptr) error {
	f := l.ferry
	if err := f.enter(); err != nil {
		return l.blame(err)
	}
	n := copy(f.words[:], words)
	f.issued.Add(1)
	return l.blame(f.d.driver.Check(name, p(f.words[:n]...)))
}

// blame attributes an error to the voyage's call.
func (l *lane) blame(err error) error {
	if err == nil {
		return nil
	}
	d, n := l.ferry.d, l.voyage.call
	return d.work.blame(n, &d.calls[n], err)
}

// gone returns the error of a pipe, whose rank is lost.
func (l *lane) gone(b *block, err error) error {
	f, v := l.ferry.d.options.Fabric, l.voyage
	f.loseRank(nil, link.Lost(l.ferry.d.options.Rank, v.ranks[b.member], v.op, err))
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost // perhaps of another rank, because of which the pipes were closed
}
