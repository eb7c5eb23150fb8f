package cuda

import (
	"sync"
	"sync/atomic"
)

// roundState is the state of the calls between two Syncs: its number, its first error, and goroutines that
// wait for the worker to issue a call, or for a host call.
type roundState struct {
	number  atomic.Uint32
	failed  atomic.Bool
	waiting atomic.Int32
	mu      sync.Mutex
	changed *sync.Cond
	err     error // the first, under mu
}

// start begins the first round.
func (r *roundState) start() {
	r.changed = sync.NewCond(&r.mu)
	r.number.Store(1)
}

// fail records the first error of the round.
func (r *roundState) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
	r.failed.Store(true)
}

// mark sets the word of a call to the round's number and wakes who waits for that.
func (r *roundState) mark(word *atomic.Uint32) {
	word.Store(r.number.Load())
	if r.waiting.Load() > 0 {
		r.mu.Lock()
		r.changed.Broadcast()
		r.mu.Unlock()
	}
}

// marked reports whether a call's word has this round's number.
func (r *roundState) marked(word *atomic.Uint32) bool { return word.Load() == r.number.Load() }

// await returns when a word is marked.
func (r *roundState) await(word *atomic.Uint32) {
	if r.marked(word) {
		return
	}
	r.waiting.Add(1)
	r.mu.Lock()
	for !r.marked(word) {
		r.changed.Wait()
	}
	r.mu.Unlock()
	r.waiting.Add(-1)
}

// end begins the next round and returns the error of this one.
func (r *roundState) end() error {
	r.mu.Lock() // another rank may be lost at this moment
	defer r.mu.Unlock()
	err := r.err
	r.err = nil
	r.failed.Store(false)
	r.number.Add(1)
	return err
}
