package cpu

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/kernel/pool"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// Streams and events.
//
// A stream's goroutine takes commands from a bounded channel: run a call, wait
// for a call of another stream, tell that the round ends. A full queue holds
// the launching goroutine. On one rank that cannot deadlock: what is queued
// depends only on what was launched before it. Of several ranks, Verify knows.
//
// An event is a word that holds the round in which its call completed. Who
// waits looks at it for a few microseconds, since many waits are for work that
// is just ending, and then registers its wish and parks. Who completes a call
// looks at the few wishes of the other streams. The second look of the waiter,
// after it registered, closes the gap between the two:
//
//	waiter:    wish = n;   done[n] == round ? cancel : park
//	completer: done[n] = round;   wish == n ? take it and send a token
//
// A throttled copy sleeps with the precision of the kernels' tasks, or, where
// nobody works, looks at the clock at the end: Go rounds the sleep of an idle
// process up to the next millisecond, which is as long as many a copy. A link
// would not care: what follows without having waited for anything counts from when
// the copy before should have ended.

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
	used   bool // in this round; the launching side's

	turn   *atomic.Int64 // see turns
	asleep atomic.Bool   // has nothing to do
	wish   atomic.Int64  // call waited for, plus 1; 0: none
	wake   chan struct{}

	parked bool // sleeps in a meeting; guarded by the fabric's lock

	// The goroutine's own.
	env     *kernel.Env
	adder   adder
	stats   device.Stats
	access  *DiskAccess
	free    time.Time // when the throttled link is free again
	follows bool      // nothing was waited for since then
	looked  int64     // time of the last look at turns
	aside   time.Time // of the last step aside for threads
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
		d.fail(fmt.Errorf("launch of call %d: %d are prepared", n, len(d.calls)))
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

// Wait holds stream id until call n is done. A wait for a call that was not
// launched in this round would never end and is an error of the round.
func (d *Device) Wait(id device.Stream, n int) {
	if id >= device.NumStreams || n < 0 || n >= len(d.calls) || d.issued[n] != d.round.Load() {
		d.fail(fmt.Errorf("stream %s waits for call %d, which is not launched in this round", id, n))
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
	d.mu.Lock() // a peer that fails interrupts at any time
	err := d.err
	d.err = nil
	d.failed.Store(false)
	d.mu.Unlock()
	d.round.Add(1)
	d.under.Store(false)
	return err
}

// Done reports whether call n has completed in the current round. It may be
// called from any goroutine while a round runs.
func (d *Device) Done(n int) bool { return d.done[n].Load() == d.round.Load() }

// Progress changes while calls that have begun get on. It may be called from any
// goroutine.
func (d *Device) Progress() uint64 { return d.meter.Progress() }

// fail keeps the first error of the round, of which others hear. That a peer
// is lost is said again by the call that waits for it, which tells more.
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

// push queues a command, the launching side's.
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

// next takes a command; none comes after the device is closed.
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
			if s.id != device.Compute { // whose kernels step back themselves: see turns
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

// complete marks a call as done and wakes the streams that wait for it.
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

// await returns when call n is done.
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
	start := time.Now()
	if c.stream != device.DiskRead && c.stream != device.DiskWrite {
		s.device.meter.Begin()
		defer s.device.meter.End()
	}
	switch {
	case c.copy != nil:
		if c.copy.From == device.DiskTier || c.copy.To == device.DiskTier {
			err = s.copy(c.copy)
		} else {
			s.work()
			err = s.copy(c.copy)
			s.rest(start)
		}
		s.throttle(start, c.copy.Bytes())
	case c.meet != nil:
		start, err = s.exchange(c.meet)
	default:
		start = s.kernel(c)
	}
	if c.span != nil {
		c.span.Start = start.Sub(s.device.opened).Seconds()
		c.span.End = time.Since(s.device.opened).Seconds()
	}
	for t, end := range c.end {
		s.stats.Peak[t] = max(s.stats.Peak[t], end)
	}
	return err
}

// kernel runs an operator and returns when it began: when it was this rank's turn
// to compute, if that is apart from others.
func (s *stream) kernel(c *call) (start time.Time) {
	if cores := s.device.cores; cores != nil && s.id == device.Compute {
		cores <- struct{}{}
		defer func() { <-cores }()
	}
	start = time.Now()
	s.work()
	defer s.rest(start)
	c.kernel()
	return start
}

// work notes that a call keeps a core busy, rest that it no longer does.
func (s *stream) work() { s.device.working.Add(1) }

func (s *stream) rest(since time.Time) {
	s.device.working.Add(-1)
	s.stats.Worked[s.id] += time.Since(since).Seconds()
}

// stepAside lets goroutines run while a stream looks for something, and now and then
// threads: two of Go's may be on one core, and what is looked for waits for the
// other's time slice to end. More often would be a present to other processes.
func (s *stream) stepAside() {
	if now := time.Now(); now.Sub(s.aside) >= asideUnit {
		s.aside = now
		pool.GiveWay()
	} else {
		runtime.Gosched()
	}
}

// throttle sleeps out the time that a copy of n bytes would take on the link.
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
	s.aside = time.Now()
	for left := time.Until(s.free); left > 0; left = time.Until(s.free) {
		switch {
		case left > sleepUnit:
			time.Sleep(min(left-sleepUnit, time.Second))
			s.device.meter.piece()
		case s.device.working.Load() > 0: // whose workers look at turns
			time.Sleep(left)
		default:
			if s.stepAside(); time.Until(s.free) == left { // only sleep moves the clock (testing/synctest)
				time.Sleep(left)
			}
		}
	}
	s.got()
}
