package train

import (
	"sync"
	"time"
)

// silence tells of a step that does not end: a disk, a link or a GPU that no longer answers. Nobody else could, since the
// goroutine that trains waits for it.
type silence struct {
	timer *time.Timer // nil: before the first step
	last  float64     // seconds of the latest step; 0: none has ended

	mutex sync.Mutex // guards what follows
	step  int
	after time.Duration
}

// A step is silent after so many times its usual time, but not before so long.
const (
	silentTimes = 20
	silentLeast = 15 * time.Second
)

// patienceFor returns how long a step that usually takes so many seconds may take.
func patienceFor(seconds float64) time.Duration {
	return max(silentLeast, time.Duration(silentTimes*seconds*float64(time.Second)))
}

// begin watches a step. The first one of a process is not: much happens in it for the first time.
func (s *silence) begin(step int, expected float64, silent func(step int, after time.Duration)) {
	if s.last == 0 {
		return
	}
	s.mutex.Lock()
	s.step, s.after = step, patienceFor(max(expected, s.last))
	after := s.after
	s.mutex.Unlock()
	if s.timer != nil {
		s.timer.Reset(after)
		return
	}
	s.timer = time.AfterFunc(after, func() {
		s.mutex.Lock()
		step, after := s.step, s.after
		s.mutex.Unlock()
		silent(step, after)
	})
}

// end is told that the step has ended.
func (s *silence) end(seconds float64) {
	s.last = seconds
	if s.timer != nil {
		s.timer.Stop()
	}
}

// inTurn hands on what several goroutines have to say, one at a time.
type inTurn struct {
	mutex sync.Mutex
	to    Observer
}

// Step implements Observer.
func (o *inTurn) Step(m Metrics) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.to.Step(m)
}

// Event implements Observer.
func (o *inTurn) Event(text string) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.to.Event(text)
}
