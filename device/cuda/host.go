package cuda

import (
	"fmt"
	"runtime"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// Host streams: kernels on the host's cores, reads and writes of the disk. Their
// goroutines are locked to threads, since waiting for a GPU event needs the context.

type hostStream struct {
	d     *Device
	id    device.Stream
	queue chan command
	ended chan struct{}
	used  bool // used in this round; owned by the launching side

	env    *kernel.Env
	access *cpu.DiskAccess
	stats  device.Stats
}

func newHostStream(d *Device, id device.Stream) *hostStream {
	return &hostStream{d: d, id: id, queue: make(chan command, queueLen), ended: make(chan struct{}), env: kernel.NewEnvOn(d.copier.pool, simd.Best())}
}

func (s *hostStream) run() {
	defer close(s.ended)
	runtime.LockOSThread()
	d := s.d
	d.driver.CtxSetCurrent(d.work.context) // if it fails, so does the first wait
	for c := range s.queue {
		switch c.verb {
		case runCall:
			if !d.round.failed.Load() {
				if err := s.execute(&d.calls[c.call]); err != nil {
					d.fail(&device.CallError{Call: int(c.call), Op: d.calls[c.call].op, Err: err})
				}
			}
			s.complete(c.call)
		case waitCall:
			if err := s.await(c.call); err != nil {
				d.fail(&device.CallError{Call: int(c.call), Op: d.calls[c.call].op, Err: err})
			}
		case endRound:
			d.idle.Done()
		}
	}
}

// complete sets the call's flag, which the GPU may be waiting for, even after an error.
func (s *hostStream) complete(n int32) { s.d.round.mark(s.d.calls[n].flag) }

// await returns when a call has completed. A GPU call's event is only valid in this
// round once the call is issued.
func (s *hostStream) await(n int32) error {
	d := s.d
	c := &d.calls[n]
	if c.flag != nil {
		d.round.await(c.flag)
		return nil
	}
	d.round.await(&d.issued[n])
	if d.round.failed.Load() {
		return nil
	}
	return d.driver.Check("cuEventSynchronize", d.driver.EventSynchronize(c.end))
}

// execute runs one call. A panic of a kernel becomes an error.
func (s *hostStream) execute(c *call) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	start := time.Now()
	if s.id != device.DiskRead && s.id != device.DiskWrite {
		d := s.d
		d.meter.Begin()
		defer d.meter.End()
	}
	if c.run != nil {
		c.run()
	} else {
		err = s.move(c.move)
	}
	if c.span != nil {
		c.span.Start = start.Sub(s.d.opened).Seconds()
		c.span.End = time.Since(s.d.opened).Seconds()
	}
	c.count(&s.stats)
	return err
}

// move copies rows within host memory, or to or from the disk.
func (s *hostStream) move(m *cpu.Transfer) error {
	d := s.d
	if d.arenas.disk != nil && s.access == nil {
		s.access = d.arenas.disk.Access(&d.meter)
	}
	host := d.arenas.host.Bytes()
	return m.Move(host, host, s.access)
}

// Launch enqueues a prepared call.
func (d *Device) Launch(n int) {
	if n < 0 || n >= len(d.calls) {
		d.fail(fmt.Errorf("launch of call %d, but only %d calls are prepared", n, len(d.calls)))
		return
	}
	c := &d.calls[n]
	if d.launched[n] == d.round.number.Load() {
		d.fail(&device.CallError{Call: n, Op: c.op, Err: fmt.Errorf("launched twice in one round")})
		return
	}
	d.launched[n] = d.round.number.Load()
	d.send(c.stream, command{runCall, c.stream, int32(n)})
}

// Wait blocks stream id until call n has completed.
func (d *Device) Wait(id device.Stream, n int) {
	if id >= device.NumStreams || n < 0 || n >= len(d.calls) || d.launched[n] != d.round.number.Load() {
		d.fail(fmt.Errorf("stream %s waits for call %d, which has not been launched in this round", id, n))
		return
	}
	if id != d.calls[n].stream {
		d.send(id, command{waitCall, id, int32(n)})
	}
}

func (d *Device) send(id device.Stream, c command) {
	if s := d.hosts[id]; s != nil {
		s.used = true
		s.queue <- c
		return
	}
	d.work.queue <- c
}

// Sync ends the round: first the host's streams, which need the GPU's events, then the
// GPU's, for which by then all awaited flags are set.
func (d *Device) Sync() error {
	for _, s := range d.hosts {
		if s != nil && s.used {
			s.used = false
			d.idle.Add(1)
			s.queue <- command{verb: endRound}
		}
	}
	d.idle.Wait()
	if err := d.work.do(d.work.finish); err != nil {
		d.fail(err)
	}
	return d.round.end()
}

// Progress changes while the host's calls progress, and with every block received from another host.
// Other GPU calls count only when they complete, which takes far less than a watchdog's patience.
func (d *Device) Progress() uint64 {
	n := d.meter.Progress()
	if d.ferry != nil {
		n += d.ferry.blocks.Load()
	}
	return n
}

// Done reports whether call n has completed in the current round. Any goroutine may
// call it while a round runs.
func (d *Device) Done(n int) bool {
	c := &d.calls[n]
	if c.flag != nil {
		return d.round.marked(c.flag)
	}
	if !d.round.marked(&d.issued[n]) {
		return false
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d.driver.CtxSetCurrent(d.work.context)
	return d.driver.EventQuery(c.end) == nv.Success
}
