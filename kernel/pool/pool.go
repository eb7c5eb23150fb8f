// Package pool runs the tasks of a kernel on all cores, many thousand times per second.
//
// A training step is a long row of short parallel loops: a matrix product of a millisecond, a norm of thirty
// microseconds, another product. Starting goroutines for each would cost more than some of the loops, and a fixed
// division of the work among the cores would wait for the slowest of them. So a Pool keeps its workers and hands them
// one job at a time:
//
//   - The caller of Run is worker 0; the others are goroutines that live as long as the Pool.
//   - Tasks are taken one by one from an atomic counter. A worker that the operating system slows down takes fewer.
//   - An idle worker spins for some tens of microseconds, since the next kernel mostly follows at once, and then
//     parks, so that an idle process uses no processor and copy streams find a free core.
//   - The caller waits for the last tasks of others without sleeping: they end soon, and waking up may be slow.
//   - Nothing is allocated per Run.
//
// # The state word
//
// All coordination goes through one atomic word: the generation of the job (upper half), a bit that says the job is
// open, a bit that says the caller sleeps, and the number of helpers inside the job. A helper joins by adding one
// while the job is open, works until the counter is exhausted, and leaves by subtracting one. The caller closes the
// job when it finds no more tasks and then waits only for the helpers inside: one that wakes too late finds the job
// closed and is never waited for.
//
// # Busy pools
//
// A Run that finds the Pool busy (a second goroutine, or a task that itself calls Run) does its tasks alone on the
// calling goroutine. Kernels must therefore not let their results depend on which worker does a task, nor on how many
// there are; in return nobody ever waits for a pool and nesting cannot deadlock.
package pool

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Body is the loop body of a job. Task does the i-th of the tasks. No two goroutines are ever inside Task with the
// same worker index at the same time, so the index may select scratch memory: see Local.
type Body interface {
	Task(i, worker int)
}

const (
	helperMask = 1<<16 - 1 // helpers inside the job
	openBit    = 1 << 16   // tasks may remain
	sleepBit   = 1 << 17   // the caller waits on done
	generation = 1 << 32   // one job

	spinTime   = 40 * time.Microsecond
	backTime   = 2 * time.Millisecond // longer than a task
	spinRounds = 16                   // looks at the state between looks at the clock
)

// Pool is a set of workers. It is safe for use by several goroutines. Its zero value is not usable: call New.
type Pool struct {
	busy    atomic.Bool // held by the caller whose job the helpers work on
	helpers []*helper
	exited  sync.WaitGroup

	state atomic.Uint64
	_     [56]byte // the state is watched by spinning helpers, next is hammered by working ones
	next  atomic.Int64
	_     [56]byte

	// The job; written while no helper is inside.
	tasks int
	body  Body
	quit  bool
	done  chan struct{}

	// Yield, if not nil, is called by workers between tasks, as a place to step back
	// for goroutines that the cores have no other time for. Set it before the first
	// Run.
	Yield func()

	failed atomic.Pointer[Panic] // of the job

	loners loners
}

// helper is one of the Pool's own goroutines.
type helper struct {
	parked atomic.Bool
	bed    bed
}

// New starts a Pool of the given number of workers, the caller of Run included; less than one means one per usable
// processor (GOMAXPROCS). Close it to end its goroutines.
func New(workers int) *Pool {
	if workers < 1 {
		workers = runtime.GOMAXPROCS(0)
	}
	workers = min(workers, helperMask)
	p := &Pool{done: make(chan struct{}, 1)}
	p.loners.first = workers
	for i := 1; i < workers; i++ {
		h := &helper{}
		p.helpers = append(p.helpers, h)
		p.exited.Add(1)
		go p.help(h, i)
	}
	return p
}

// Workers returns the number of workers of a job that finds the Pool free. Worker indices may be higher: a Run that
// finds the Pool busy works under an index of its own.
func (p *Pool) Workers() int { return len(p.helpers) + 1 }

// Run calls body.Task(i, worker) once for each i in [0, tasks), in any order and on any worker, and returns when all
// calls have returned. What the tasks wrote is visible to the caller. If a task panics, those that have not begun are
// left out and Run panics with a *Panic (or, where it runs alone, with the value itself).
func (p *Pool) Run(tasks int, body Body) {
	if tasks <= 0 {
		return
	}
	if tasks == 1 || len(p.helpers) == 0 || !p.busy.CompareAndSwap(false, true) {
		p.runAlone(tasks, body)
		return
	}
	p.tasks, p.body = tasks, body
	p.next.Store(0)
	p.state.Store(p.state.Load()&^(generation-1) + generation | openBit)
	p.wake(tasks - 1)
	p.guarded(0)
	p.finish()
	p.body = nil
	failed := p.failed.Swap(nil)
	p.busy.Store(false)
	if failed != nil {
		panic(failed)
	}
}

// Panic is what Run panics with when a task did, on whichever worker: the
// first task's value, and the stack where it happened.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("%v\n%s", p.Value, p.Stack) }

// guarded takes tasks until none is left or one panics, which ends the job.
func (p *Pool) guarded(worker int) {
	defer func() {
		if v := recover(); v != nil {
			p.failed.CompareAndSwap(nil, &Panic{v, debug.Stack()})
			p.next.Store(int64(p.tasks))
		}
	}()
	p.work(worker)
}

// runAlone does a job on the calling goroutine under a worker index that nobody else has.
func (p *Pool) runAlone(tasks int, body Body) {
	w := p.loners.take()
	defer p.loners.put(w)
	for i := range tasks {
		body.Task(i, w)
		p.StepBack()
	}
}

// wake gets up parked helpers, at most n of them.
func (p *Pool) wake(n int) {
	const unknown = -2
	here := unknown
	for _, h := range p.helpers {
		if n == 0 {
			return
		}
		if h.parked.CompareAndSwap(true, false) {
			if here == unknown {
				here = core()
			}
			h.bed.wake(here)
		}
		n--
	}
}

// work takes tasks until none is left.
func (p *Pool) work(worker int) {
	tasks, body := int64(p.tasks), p.body
	for {
		i := p.next.Add(1) - 1
		if i >= tasks {
			return
		}
		body.Task(int(i), worker)
		p.StepBack()
	}
}

// StepBack calls Yield. Tasks of more than some hundred microseconds do it too, in the midst of them.
func (p *Pool) StepBack() {
	if p.Yield != nil {
		p.Yield()
	}
}

// finish closes the job and waits for the helpers inside it.
func (p *Pool) finish() {
	if p.state.And(^uint64(openBit))&helperMask == 0 {
		return
	}
	inside := func() bool { return p.state.Load()&helperMask != 0 }
	if !spinWhile(inside) || !yieldWhile(inside) {
		return
	}
	if p.state.Or(sleepBit)&helperMask != 0 {
		<-p.done
	}
}

// help is the life of a helper.
func (p *Pool) help(h *helper, worker int) {
	defer p.exited.Done()
	var last uint64 // the job this helper has seen the end of
	idle := func() bool {
		s := p.state.Load()
		return s&openBit == 0 || s/generation == last
	}
	for {
		if spinWhile(idle) {
			runtime.Gosched() // asleep in the kernel it still has its processor of Go's, which others may want now
			h.park(idle)
		}
		s := p.state.Load()
		if s&openBit == 0 || !p.state.CompareAndSwap(s, s+1) {
			continue
		}
		last = s / generation
		if p.quit {
			return
		}
		p.guarded(worker)
		if s := p.state.Add(^uint64(0)); s&helperMask == 0 && s&sleepBit != 0 {
			p.done <- struct{}{}
		}
	}
}

// park sleeps until somebody wakes it, unless there is work already. The second look at the state closes the gap between
// the end of the spin and the flag: a Run that opened a job in between saw no parked helper and woke none.
func (h *helper) park(idle func() bool) {
	h.bed.lie()
	h.parked.Store(true)
	if !idle() && h.parked.CompareAndSwap(true, false) {
		h.bed.rise()
		return
	}
	h.bed.sleep()
}

// spinWhile waits actively until cond is false, for about spinTime, and returns the last value of cond.
func spinWhile(cond func() bool) bool {
	var start time.Time
	for {
		for range spinRounds {
			if !cond() {
				return false
			}
			pause()
		}
		if start.IsZero() {
			start = time.Now()
		} else if time.Since(start) > spinTime {
			return cond()
		}
	}
}

// yieldWhile gives its core to whatever else is ready until cond is false, for about backTime, and returns the last value
// of cond. Who waits for a helper's last task does this before it sleeps: its thread would sleep too, and may be woken on
// the helper's core (see bed), with the other one idle for milliseconds.
func yieldWhile(cond func() bool) bool {
	for start := time.Now(); cond(); runtime.Gosched() {
		if time.Since(start) > backTime {
			return cond()
		}
	}
	return false
}

// Close ends the goroutines of the Pool and returns when they are gone. No Run may be under way or follow.
func (p *Pool) Close() {
	if len(p.helpers) == 0 || !p.busy.CompareAndSwap(false, true) {
		return
	}
	p.quit = true
	p.state.Store(p.state.Load()&^(generation-1) + generation | openBit)
	p.wake(len(p.helpers))
	p.exited.Wait()
}
