package cpu

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/clock"
)

// Turns of streams.
//
// Kernels keep all cores busy and never enter Go's scheduler, which checks timers and
// runnable goroutines only there, or when it preempts a goroutine after 10 ms. The copy
// of a throttled link would oversleep by that much, and any copy ready to start would
// wait. So a stream announces when it wants a core. The pool's workers check between
// tasks, and within tasks that take longer than a millisecond. If a stream's time has
// come they yield once, and the scheduler runs it.
//
//	copy stream   turn = 12.5 ms; sleep ...........| turn = 0; next copy
//	workers       task  task  task  (12.6 ms) yield  task
//
// The compute stream does not yield between kernels: it would wait for as long as the
// copy moves bytes, while the other workers' cores are idle. Within a kernel they go
// on.
//
// When no kernel runs, there are no tasks to check between, and Go oversleeps by up to
// a millisecond. Streams that wait or are idle then keep polling if a stream's turn is
// that near: a goroutine that looks for work also finds expired timers. They yield to
// threads as well, see stepAside.

// turns holds for each stream the time from which it wants a core, in nanoseconds since
// the device was opened; 0: it does not, or has one. Ranks that share the cores share
// the turns, since any core may run the next stream.
type turns []atomic.Int64

func newTurns(ranks int) turns { return make(turns, ranks*int(device.NumStreams)) }

// of returns the turn of a rank's stream.
func (t turns) of(rank int, s device.Stream) *atomic.Int64 {
	return &t[rank*int(device.NumStreams)+int(s)]
}

// want announces that a stream wants a core from time at on.
func (s *stream) want(at time.Time) { s.turn.Store(max(int64(at.Sub(s.device.opened)), 1)) }

// got records that a stream has a core.
func (s *stream) got() {
	if s.turn.Load() != 0 { // others poll the same cache line
		s.turn.Store(0)
	}
}

// yield yields the core once if a stream's turn has come. Workers call it between
// tasks.
func (d *Device) yield() {
	var now int64
	for i := range d.turns {
		t := d.turns[i].Load()
		if t == 0 {
			continue
		}
		if now == 0 {
			now = int64(clock.Since(d.opened))
		}
		if t <= now {
			runtime.Gosched()
			return
		}
	}
}

// soon reports whether no kernel runs and a stream wants a core within the time that an
// idle process oversleeps. A waiter should then keep polling, except on a clock that
// only sleeping advances (testing/synctest).
func (s *stream) soon() bool {
	d := s.device
	if d.working.Load() > 0 {
		return false
	}
	now := int64(clock.Since(d.opened))
	if now == s.looked {
		return false
	}
	s.looked = now
	for i := range d.turns {
		if t := d.turns[i].Load(); t > now && t < now+int64(sleepUnit) {
			return true
		}
	}
	return false
}
