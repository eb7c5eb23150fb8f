package search

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Looking ahead.
//
// What a search asks next depends on the answer to what it asks now. But most answers are that a change does not help,
// and then it goes on with the next change from where it is. So scouts, on other cores, run the search's own code for
// the next items of a list on copies of its state, as if the present item brought nothing. What they evaluate is
// remembered, and when the search comes to it, it finds the answer:
//
//	search   item 0 ..... no | 1 (known) no | 2 (known) helps | 3' .....
//	scout    item 1 ......   | 3 .......... (in vain)         | 4' .....
//	scout    item 2 ............ | 4 ...... (in vain)         | 5' .....
//
// An evaluation is a function of its choice, scouts change nothing but what is remembered, and the search alone counts
// its effort. So no decision depends on scouts, or on the number of cores (TestScouts).
//
// Known weakness: where most changes help, scouts work in vain.

// mostScouts bounds the scouts that are out at the same time: each holds programs.
const mostScouts = 4

// scouts are out for the items of a list. Nil stands for none. A problem's search calls all methods.
type scouts struct {
	mu      sync.Mutex
	moved   sync.Cond
	reached int // the search is at this item
	next    int // for a scout
	items   int
	ahead   int // a scout's item is at most so far after the search's
	halt    atomic.Bool
}

// tryInTurn tries items 0 to n-1 of a list until one ends it, and returns which, or n. Meanwhile scouts try the next ones, with
// a function that must do so on a copy of the search's present state, for the problem that it is given.
func tryInTurn(ctx context.Context, p *problem, n int, scout func(ctx context.Context, p *problem, item int), try func(item int) (end bool, err error)) (item int, err error) {
	ahead := look(ctx, p, n, scout)
	defer ahead.recall()
	for i := range n {
		ahead.reach(i)
		if end, err := try(i); end || err != nil {
			return i, err
		}
	}
	return n, nil
}

// look sends scouts to items 1 to n-1 of a list, the first of which the search is about to try.
func look(ctx context.Context, p *problem, n int, try func(ctx context.Context, p *problem, item int)) *scouts {
	if p.halt != nil || n < 2 {
		return nil // scouts have no scouts
	}
	s := &scouts{next: 1, items: n}
	s.moved.L = &s.mu
	for range min(runtime.GOMAXPROCS(0), mostScouts, n-1) {
		if !p.known.sendOut() {
			break
		}
		s.ahead++
	}
	for range s.ahead {
		told := *p.told
		told.progress, told.early = nil, nil
		own := *p
		own.told, own.halt = &told, &s.halt
		go func() {
			defer p.known.comeBack()
			for item, ok := s.take(); ok; item, ok = s.take() {
				was := told
				try(ctx, &own, item)
				told = was // the search has not done it
			}
		}()
	}
	return s
}

// take returns the next item for a scout, once the search is near enough.
func (s *scouts) take() (item int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.halt.Load() && max(s.next, s.reached+1) > s.reached+s.ahead {
		s.moved.Wait()
	}
	item = max(s.next, s.reached+1)
	if s.halt.Load() || item >= s.items {
		return 0, false
	}
	s.next = item + 1
	return item, true
}

// reach tells scouts at which item the search is.
func (s *scouts) reach(item int) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.reached = item
	s.mu.Unlock()
	s.moved.Broadcast()
}

// recall ends what scouts do, after the evaluations that they are at.
func (s *scouts) recall() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.halt.Store(true)
	s.mu.Unlock()
	s.moved.Broadcast()
}

// errHalted ends what a scout does.
var errHalted = errors.New("recalled")

// evaluations are what is known of choices. They are safe for concurrent use.
type evaluations struct {
	mu      sync.Mutex
	refused map[string]Candidate // what choices need that do not fit, for good
	recent  []*evaluation        // the last ones, latest last
	out     int                  // scouts
	back    sync.Cond
	cores   int
	busy    int // evaluations that go on
	free    sync.Cond
}

// evaluation is what is known of a choice, once done is closed.
type evaluation struct {
	key     string
	done    chan struct{}
	c       *Candidate
	lowered int // instructions
	err     error
}

func newEvaluations() *evaluations {
	e := &evaluations{refused: map[string]Candidate{}, cores: runtime.GOMAXPROCS(0)}
	e.back.L, e.free.L = &e.mu, &e.mu
	return e
}

// begin begins an evaluation. A scout waits for a core that nobody uses, the search does not.
func (e *evaluations) begin(scout bool) {
	e.mu.Lock()
	for scout && e.busy >= e.cores {
		e.free.Wait()
	}
	e.busy++
	e.mu.Unlock()
}

// end ends an evaluation.
func (e *evaluations) end() {
	e.mu.Lock()
	e.busy--
	e.mu.Unlock()
	e.free.Signal()
}

// sendOut counts a scout, if there may be one more.
func (e *evaluations) sendOut() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.out >= min(e.cores, mostScouts) || e.cores == 1 {
		return false
	}
	e.out++
	return true
}

func (e *evaluations) comeBack() {
	e.mu.Lock()
	e.out--
	e.mu.Unlock()
	e.back.Broadcast()
}

// settle waits until no scout is out. All must have been recalled.
func (e *evaluations) settle() {
	e.mu.Lock()
	for e.out > 0 {
		e.back.Wait()
	}
	e.mu.Unlock()
}

// of returns what is known of a choice, or finds it out, for the search or a scout. While others do, it waits for them.
func (e *evaluations) of(key string, scout bool, judge func() (*Candidate, int, error)) *evaluation {
	e.mu.Lock()
	if i := slices.IndexFunc(e.recent, func(o *evaluation) bool { return o.key == key }); i >= 0 {
		known := e.recent[i]
		e.recent = append(slices.Delete(e.recent, i, i+1), known)
		e.mu.Unlock()
		<-known.done
		return known
	}
	now := &evaluation{key: key, done: make(chan struct{})}
	e.recent = append(e.recent, now)
	e.mu.Unlock()
	e.begin(scout)
	now.c, now.lowered, now.err = judge()
	e.end()
	close(now.done)
	e.forget()
	return now
}

// forget drops the oldest evaluations, so that those that are left hold few programs.
func (e *evaluations) forget() {
	const most, instructions = 64, 200_000
	e.mu.Lock()
	defer e.mu.Unlock()
	held := 0
	for i, o := range slices.Backward(e.recent) {
		select {
		case <-o.done:
			if o.err == nil && o.c.Fits {
				held += o.lowered
			}
		default: // it is waited for, or will be
		}
		if held > instructions || len(e.recent)-i > most {
			e.recent = slices.Clone(e.recent[i+1:])
			return
		}
	}
}

// refuse remembers what a choice needs that does not fit.
func (e *evaluations) refuse(key string, c *Candidate) {
	e.mu.Lock()
	e.refused[key] = Candidate{Programs: c.Programs, Program: c.Program, shared: c.shared}
	e.mu.Unlock()
}

// refusal returns what a choice needs, if the search knows that it does not fit.
func (e *evaluations) refusal(key string) (c Candidate, ok bool) {
	e.mu.Lock()
	c, ok = e.refused[key]
	e.mu.Unlock()
	return c, ok
}
