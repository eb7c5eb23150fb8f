package cpu

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/clock"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/kernel/pool"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// Streams and events.
//
// A stream's goroutine takes commands from a bounded channel: run a call, wait for
// another stream's call, end the round. A full queue blocks the launching goroutine. On
// one rank that cannot deadlock, since queued commands depend only on earlier launches.
// For several ranks, Verify rules it out.
//
// An event is a word that holds the round in which its call completed. A waiter polls
// it for a few microseconds, since many waits are for work that is about to end, then
// registers its wish and parks. After completing a call, a stream checks the few wishes
// of the other streams. The waiter's second check, after it registered, closes the race
// between the two:
//
//	waiter:    wish = n;   done[n] == round ? cancel : park
//	completer: done[n] = round;   wish == n ? take it and send a token
//
// A throttled copy sleeps with the precision of the kernels' tasks. Where no kernel
// runs it polls the clock at the end, because Go rounds the sleep of an idle process up
// to the next millisecond, which is as long as many a copy. A real link has no such
// delay, so a copy that follows another without a wait counts from when the previous
// one should have ended.

const (
	queueLen  = device.QueueLen
	waitLooks = 100              // looks at an event before parking
	sleepUnit = time.Millisecond // of an idle process
	asideUnit = 200 * time.Microsecond
)

type verb uint8

const (
	runCall verb = iota
	waitCall
	endRound
)

type command struct {
	verb verb
	call int32
}

type stream struct {
	device *Device
	id     device.Stream
	queue  chan command
	ended  chan struct{}
	used   bool // used in this round; owned by the launching side

	turn   *atomic.Int64 // see turns
	asleep atomic.Bool   // idle
	wish   atomic.Int64  // call waited for, plus 1; 0: none
	wake   chan struct{}

	parked bool // sleeps in a meeting; guarded by the fabric's lock

	// The goroutine's own.
	env     *kernel.Env
	adder   adder
	heard   [][]byte      // blocks of far members
	idle    time.Duration // of a call, waiting for the network
	stats   device.Stats
	access  *DiskAccess
	free    time.Time // when the throttled link is free again
	follows bool      // no wait since then
	looked  int64     // time of the last look at turns
	aside   time.Time // of the last yield to other threads
}

func (d *Device) newStream(id device.Stream) *stream {
	s := &stream{
		device: d, id: id,
		queue: make(chan command, queueLen),
		ended: make(chan struct{}),
		wake:  make(chan struct{}, 1),
		env:   kernel.NewEnvOn(d.pool, simd.Best()),
		adder: adder{simd: simd.Best()},
	}
	s.asleep.Store(true)
	return s
}

// Launch enqueues a prepared call.
func (d *Device) Launch(n int) {
	if n < 0 || n >= len(d.calls) {
		d.fail(fmt.Errorf("launch of call %d, but only %d calls are prepared", n, len(d.calls)))
		return
	}
	if d.issued[n] == d.round.Load() {
		d.fail(&device.CallError{Call: n, Op: d.calls[n].op, Err: fmt.Errorf("launched twice in one round")})
		return
	}
	d.issued[n] = d.round.Load()
	s := d.streams[d.calls[n].stream]
	s.push(command{runCall, int32(n)})
}

// Wait blocks stream id until call n has completed. A wait for a call not launched in
// this round would never end and is an error of the round.
func (d *Device) Wait(id device.Stream, n int) {
	if id >= device.NumStreams || n < 0 || n >= len(d.calls) || d.issued[n] != d.round.Load() {
		d.fail(fmt.Errorf("stream %s waits for call %d, which has not been launched in this round", id, n))
		return
	}
	s := d.streams[id]
	s.push(command{waitCall, int32(n)})
}

// Sync ends the round.
func (d *Device) Sync() error {
	for _, s := range d.streams {
		if s.used {
			d.idle.Add(1)
			s.push(command{endRound, 0})
		}
	}
	for _, s := range d.streams {
		s.used = false
	}
	d.idle.Wait()
	d.mu.Lock() // a peer's failure may interrupt at any time
	err := d.err
	d.err = nil
	d.failed.Store(false)
	d.mu.Unlock()
	d.round.Add(1)
	d.under.Store(false)
	return err
}

// Done reports whether call n has completed in the current round. Any goroutine may
// call it while a round runs.
func (d *Device) Done(n int) bool { return d.done[n].Load() == d.round.Load() }

// Progress changes while started calls progress. Any goroutine may call it.
func (d *Device) Progress() uint64 { return d.meter.Progress() }

// fail records the round's first error and reports it to joined devices. A later error
// replaces a PeerError, since the call that waits for the peer gives more detail.
func (d *Device) fail(err error) {
	d.mu.Lock()
	if _, peer := d.err.(*device.PeerError); d.err == nil || peer {
		d.err = err
	}
	d.failed.Store(true)
	d.mu.Unlock()
	if d.options.Fabric != nil && d.refused == nil {
		d.options.Fabric.lose(d, err)
	}
}

// push enqueues a command, on the launching side.
func (s *stream) push(c command) {
	if !s.used {
		s.used = true
		s.device.under.Store(true)
	}
	if s.asleep.Load() {
		s.want(s.device.opened)
	}
	s.queue <- c
}

// next returns the next command; ok is false once the device is closed.
func (s *stream) next() (c command, ok bool) {
	select {
	case c, ok = <-s.queue:
	default:
		s.asleep.Store(true)
		s.follows = false
		for len(s.queue) == 0 && s.soon() {
			s.stepAside()
		}
		c, ok = <-s.queue
		s.asleep.Store(false)
	}
	s.got()
	return c, ok
}

func (s *stream) run() {
	defer close(s.ended)
	d := s.device
	for {
		c, ok := s.next()
		if !ok {
			return
		}
		switch c.verb {
		case runCall:
			if !d.failed.Load() {
				if err := s.execute(&d.calls[c.call]); err != nil {
					d.fail(&device.CallError{Call: int(c.call), Op: d.calls[c.call].op, Err: err})
				}
			}
			s.complete(c.call)
			if s.id != device.Compute { // its kernels yield by themselves, see turns
				d.yield()
			}
		case waitCall:
			s.await(c.call)
		case endRound:
			s.follows = false // whoever begins the next has waited
			d.idle.Done()
		}
	}
}

// complete marks a call as completed and wakes the streams that wait for it.
func (s *stream) complete(n int32) {
	d := s.device
	d.done[n].Store(d.round.Load())
	for _, t := range d.streams {
		if t.wish.Load() == int64(n)+1 && t.wish.CompareAndSwap(int64(n)+1, 0) {
			t.want(d.opened)
			t.wake <- struct{}{}
		}
	}
}

// await returns when call n has completed.
func (s *stream) await(n int32) {
	d := s.device
	for looks := 0; looks < waitLooks || s.soon(); looks++ {
		if d.done[n].Load() == d.round.Load() {
			return
		}
		s.follows = false
		s.want(d.opened)
		if looks < waitLooks {
			runtime.Gosched()
		} else {
			s.stepAside()
		}
		s.got()
	}
	s.wish.Store(int64(n) + 1)
	if d.done[n].Load() == d.round.Load() && s.wish.CompareAndSwap(int64(n)+1, 0) {
		return
	}
	<-s.wake
	s.got()
}

// execute runs one call. A panic of a kernel becomes an error.
func (s *stream) execute(c *call) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	start := clock.Now()
	if far := c.meet != nil && c.meet.far != nil; !far && c.stream != device.DiskRead && c.stream != device.DiskWrite {
		s.device.meter.Begin()
		defer s.device.meter.End()
	}
	switch {
	case c.copy != nil:
		if c.copy.From == device.DiskTier || c.copy.To == device.DiskTier {
			err = s.copy(c.copy)
		} else {
			s.startWork()
			err = s.copy(c.copy)
			s.stopWork(start)
		}
		s.throttle(start, c.copy.Bytes())
	case c.meet != nil:
		start, err = s.exchange(c.meet)
	default:
		start = s.kernel(c)
	}
	if c.span != nil {
		c.span.Start = start.Sub(s.device.opened).Seconds()
		c.span.End = clock.Since(s.device.opened).Seconds()
	}
	for t, end := range c.end {
		s.stats.Peak[t] = max(s.stats.Peak[t], end)
	}
	return err
}

// kernel runs an operator and returns when it began; with Options.Apart, that is when
// this rank was admitted to compute.
func (s *stream) kernel(c *call) (start time.Time) {
	if cores := s.device.cores; cores != nil && s.id == device.Compute {
		cores <- struct{}{}
		defer func() { <-cores }()
	}
	start = clock.Now()
	s.startWork()
	defer s.stopWork(start)
	c.kernel()
	return start
}

// startWork records that a call starts to keep a core busy, stopWork that it stops.
func (s *stream) startWork() { s.device.working.Add(1) }

func (s *stream) stopWork(since time.Time) {
	s.device.working.Add(-1)
	s.stats.Worked[s.id] += clock.Since(since).Seconds()
}

// stepAside yields to goroutines while a stream polls, and every asideUnit to threads:
// two of Go's threads may be on one core, and the awaited work then waits for the other's time
// slice to end. Yielding more often would give time away to other processes.
func (s *stream) stepAside() {
	if now := clock.Now(); now.Sub(s.aside) >= asideUnit {
		s.aside = now
		pool.GiveWay()
	} else {
		runtime.Gosched()
	}
}

// throttle sleeps for the rest of the time that a copy of n bytes takes on the link.
func (s *stream) throttle(start time.Time, n int64) {
	rate := s.device.options.Rate[s.id]
	if rate <= 0 {
		return
	}
	if s.follows {
		start = s.free
	}
	s.follows = true
	s.free = start.Add(time.Duration(float64(n) / rate * 1e9))
	s.want(s.free)
	s.aside = clock.Now()
	for left := clock.Until(s.free); left > 0; left = clock.Until(s.free) {
		switch {
		case left > sleepUnit:
			time.Sleep(min(left-sleepUnit, time.Second))
			s.device.meter.piece()
		case s.device.working.Load() > 0: // their workers look at turns
			time.Sleep(left)
		default:
			if s.stepAside(); clock.Until(s.free) == left { // only sleep moves the clock (testing/synctest)
				time.Sleep(left)
			}
		}
	}
	s.got()
}
