package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/nv"
)

// The worker. A context belongs to a thread, so one goroutine locked to its thread
// makes all driver calls; the others send it commands through a bounded queue. The
// worker runs ahead of the GPU, but not too far. The driver has room for about a
// thousand launches; a caller that exceeds it blocks inside the driver, which locks out
// other threads meanwhile. The host's streams could then not query what they wait for,
// nor could other ranks launch what this GPU waits for. So the worker waits earlier,
// for an event, which blocks no other thread.

const queueLen = 4096

// A stream has at most three stretches of this many driver calls pending, plus those of
// one call.
const stretch = 256

// line records how far the worker is ahead of a stream: the calls that ended the last
// two stretches, or -1, and the driver calls since.
type line struct {
	ends  [2]int32
	since int64
}

type verb uint8

const (
	runCall verb = iota
	waitCall
	endRound // host streams only
	doTask   // worker only: tasks between rounds
)

type command struct {
	verb   verb
	stream device.Stream
	call   int32
}

type worker struct {
	d       *Device
	queue   chan command
	task    func() error // of doTask
	result  chan error
	untimed bool // rounds are not timed, though their calls could be
	context uintptr
	device  int
	streams [device.NumStreams]uintptr
	stats   device.Stats

	// Of the round.
	used   [device.NumStreams]bool
	waited [device.NumStreams]bool  // since the last call, so the next one does not start at that one's end
	last   [device.NumStreams]int32 // last call
	latest int32                    // last call of any stream
	lines  [device.NumStreams]line
	order  []int32       // timed calls
	base   uintptr       // event at the start of the round
	begun  time.Duration // since the device was opened
	ms     *milliseconds
	words  [4]uintptr // arguments of the current call: a new list would be allocated
}

// ask calls a procedure with up to four words.
func (w *worker) ask(name string, p nv.Proc, words ...uintptr) error {
	n := copy(w.words[:], words)
	w.stats.Issued++
	return w.d.driver.Check(name, p(w.words[:n]...))
}

// take makes the library calls of some steps.
func (w *worker) take(steps []step) error {
	for i := range steps {
		if code := steps[i].proc(steps[i].args...); code != nv.Success {
			return steps[i].explain(code)
		}
	}
	w.stats.Issued += int64(len(steps))
	return nil
}

func (w *worker) start(d *Device) {
	w.d, w.queue, w.result, w.ms = d, make(chan command, queueLen), make(chan error), new(milliseconds)
	w.reset()
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for c := range w.queue {
			switch c.verb {
			case runCall:
				w.issue(c.call)
			case waitCall:
				w.await(c.stream, c.call)
			case doTask:
				w.result <- w.task()
			}
		}
		w.result <- nil
	}()
}

func (w *worker) stop() {
	close(w.queue)
	<-w.result
}

// do runs f on the worker's thread and returns its result.
func (w *worker) do(f func() error) error {
	w.task = f
	w.queue <- command{verb: doTask}
	return <-w.result
}

func (w *worker) reset() {
	w.used, w.waited = [device.NumStreams]bool{}, [device.NumStreams]bool{}
	for s := range w.last {
		w.last[s], w.lines[s] = -1, line{ends: [2]int32{-1, -1}}
	}
	w.order, w.latest = w.order[:0], -1
}

// begin records the event at the start of the round, the origin of the GPU's times.
// finish waits for that event as well.
func (w *worker) begin() error {
	d := w.d
	w.begun, w.used[device.Compute] = time.Since(d.opened), true
	return w.ask("cuEventRecord", d.driver.EventRecord, w.base, w.streams[device.Compute])
}

// issue passes a call to the driver. After an error the rest of the round is skipped
// but marked as issued, since others wait for that.
func (w *worker) issue(n int32) {
	d := w.d
	c := &d.calls[n]
	if !d.round.failed.Load() {
		if err := w.enqueue(n, c); err != nil {
			d.fail(w.blame(n, c, err))
		}
	}
	d.round.mark(&d.issued[n])
}

func (w *worker) enqueue(n int32, c *call) error {
	d, v, s := w.d, w.d.driver, w.streams[c.stream]
	w.used[c.stream] = true
	before := w.stats.Issued
	timed := w.times(c)
	if timed {
		if len(w.order) == 0 {
			if err := w.begin(); err != nil {
				return err
			}
		}
		// A call that was given to the driver right after its stream's last one can begin
		// when that ends. Others may come later: their stream was idle meanwhile.
		c.after = w.latest
		if w.waited[c.stream] || w.latest != w.last[c.stream] || c.exchange != nil {
			c.after = -1
		}
		if c.after < 0 && c.exchange == nil { // it begins when all members have arrived
			if err := w.ask("cuEventRecord", v.EventRecord, c.start, s); err != nil {
				return err
			}
		}
		w.order = append(w.order, n)
	}
	if c.exchange != nil {
		if err := w.exchange(n, c); err != nil {
			return err
		}
	}
	if err := w.take(c.steps); err != nil {
		return err
	}
	if timed {
		if err := w.ask("cuEventRecord", v.EventRecord, c.stop, s); err != nil {
			return err
		}
	}
	if err := w.ask("cuEventRecord", v.EventRecord, c.end, s); err != nil {
		return err
	}
	w.waited[c.stream], w.last[c.stream], w.latest = false, n, n
	c.count(&w.stats)
	if d.options.Serial && c.exchange == nil { // a partner may come later in program order
		return w.ask("cuStreamSynchronize", v.StreamSynchronize, s)
	}
	return w.pace(c.stream, n, w.stats.Issued-before)
}

// times reports whether a call is timed in this round.
func (w *worker) times(c *call) bool { return c.start != 0 && !w.untimed }

// pace keeps the worker from getting too far ahead of a stream that was just given a
// call.
func (w *worker) pace(s device.Stream, n int32, asked int64) error {
	l := &w.lines[s]
	if l.since += asked; l.since < stretch {
		return nil
	}
	oldest := l.ends[0]
	*l = line{ends: [2]int32{l.ends[1], n}}
	if oldest < 0 {
		return nil
	}
	return w.ask("cuEventSynchronize", w.d.driver.EventSynchronize, w.d.calls[oldest].end)
}

// await makes one of the driver's streams wait for a call.
func (w *worker) await(s device.Stream, n int32) {
	d, v := w.d, w.d.driver
	if d.round.failed.Load() {
		return
	}
	c := &d.calls[n]
	w.waited[s], w.used[s] = true, true
	w.lines[s].since++
	var err error
	if isHost(c.stream) {
		err = w.ask("cuStreamWaitValue32", v.StreamWaitValue32, w.streams[s], c.flagAddr, uintptr(d.round.number.Load()), nv.WaitEqual)
	} else {
		err = w.ask("cuStreamWaitEvent", v.StreamWaitEvent, w.streams[s], c.end, 0)
	}
	if err != nil {
		d.fail(w.blame(n, c, err))
	}
}

// blame attributes an error to a call, unless an earlier call may have caused it: the
// call that reports a fault is certain to have caused it only if calls run one by one.
func (w *worker) blame(n int32, c *call, err error) error {
	var fault *nv.Error
	if errors.As(err, &fault) && fault.Late() && !w.d.options.Serial {
		return err
	}
	return &device.CallError{Call: int(n), Op: c.op, Err: err}
}

// finish waits for the GPU and computes the times, as a task.
func (w *worker) finish() error {
	d, v := w.d, w.d.driver
	for s, used := range w.used {
		if !used {
			continue
		}
		if err := w.ask("cuStreamSynchronize", v.StreamSynchronize, w.streams[s]); err != nil {
			w.reset()
			return fmt.Errorf("stream %s: %w", device.Stream(s), err)
		}
	}
	if !d.round.failed.Load() {
		for _, n := range w.order {
			c := &d.calls[n]
			if c.after >= 0 {
				c.span.Start = d.calls[c.after].until
			} else {
				c.span.Start = w.at(c.start)
			}
			c.until = w.at(c.stop)
			c.span.End = c.until
		}
	}
	w.reset()
	return nil
}

// at returns the time of an event, in seconds since the device was opened.
func (w *worker) at(event uintptr) float64 {
	words := append(w.words[:0], nv.Addr(w.ms), w.base, event) // no part of the step: it is over
	if w.d.driver.EventElapsedTime(words...) != nv.Success {
		return 0 // of a skipped call
	}
	return w.begun.Seconds() + w.ms.seconds()
}
