package cpu

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device"
)

// Turns of streams.
//
// Kernels keep all cores busy and never enter Go's scheduler, which looks at
// timers and at goroutines that are ready only there, or where it interrupts one
// after 10 ms. So long the copy of a throttled link would oversleep, and any copy
// that could begin would wait. So a stream says when it wants a core, and the
// pool's workers look between two tasks and, where those take longer than a
// millisecond, within them: if somebody's time has come they step back once, and
// the scheduler finds him.
//
//	copy stream   turn = 12.5 ms; sleep ...........| turn = 0; next copy
//	workers       task  task  task  (12.6 ms) yield  task
//
// Between two kernels the compute stream does not step back: it would wait for as
// long as the copy moves bytes, while the core of the other workers has nothing to
// do. Within a kernel they go on.
//
// Where nobody works, there are no tasks to look between, and Go oversleeps by up
// to a millisecond. Then streams that wait or have nothing to do look on if
// somebody's turn is that near: what looks for work finds the end of a sleep too.
// They step aside for threads as well, see stepAside.

// turns holds for each stream from when on it wants a core, in nanoseconds since
// the device was opened; 0: it does not, or has one. Ranks that share the cores
// have them in common: whose turn it is may be on anybody's core.
type turns []atomic.Int64

func newTurns(ranks int) turns { return make(turns, ranks*int(device.NumStreams)) }

// of is what a rank's stream has of them.
func (t turns) of(rank int, s device.Stream) *atomic.Int64 {
	return &t[rank*int(device.NumStreams)+int(s)]
}

// want notes that a stream wants a core from a time on.
func (s *stream) want(at time.Time) { s.turn.Store(max(int64(at.Sub(s.device.opened)), 1)) }

// got notes that a stream has a core.
func (s *stream) got() {
	if s.turn.Load() != 0 { // others look at the same cache line
		s.turn.Store(0)
	}
}

// yield steps back if a stream's turn has come. Workers call it between tasks.
func (d *Device) yield() {
	var now int64
	for i := range d.turns {
		t := d.turns[i].Load()
		if t == 0 {
			continue
		}
		if now == 0 {
			now = int64(time.Since(d.opened))
		}
		if t <= now {
			runtime.Gosched()
			return
		}
	}
}

// soon reports whether nobody works and a stream wants a core within what an idle
// process oversleeps. Who has to wait should look on until then, but on a clock that
// only sleep moves (testing/synctest).
func (s *stream) soon() bool {
	d := s.device
	if d.working.Load() > 0 {
		return false
	}
	now := int64(time.Since(d.opened))
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
