// Package pool runs the tasks of a kernel on all cores, many thousand times per second.
//
// A training step is a long sequence of short parallel loops: a matrix product of a millisecond, a norm of thirty
// microseconds, another product. Starting goroutines for each would cost more than some of the loops, and a static
// division of the work among cores would wait for the slowest one. So a Pool keeps its workers and gives them one job
// at a time:
//
//   - The caller of Run is worker 0; the others are goroutines that live as long as the Pool.
//   - Tasks are taken one by one from an atomic counter. A worker that the operating system slows down takes fewer.
//   - An idle worker spins for some tens of microseconds, since the next kernel mostly follows at once. Then it
//     parks, so that an idle process uses no CPU and copy streams find a free core.
//   - The caller spins, then yields, before it sleeps until the others' last tasks end: they end soon, and waking may
//     be slow.
//   - Nothing is allocated per Run.
//
// # The state word
//
// All coordination goes through one atomic word: the generation of the job (upper half), a bit that says the job is
// open, a bit that says the caller sleeps, and the number of helpers inside the job. A helper joins by adding one
// while the job is open, works until the counter is exhausted, and leaves by subtracting one. The caller closes the
// job when it finds no more tasks and then waits only for the helpers inside. A helper that wakes too late finds the
// job closed, and nobody waits for it.
//
// # Busy pools
//
// A Run that finds the Pool busy (in a second goroutine, or in a task that itself calls Run) executes its tasks alone
// on the calling goroutine. So results of kernels must not depend on which worker executes a task, nor on the number
// of workers; in return nobody ever waits for a pool, and nesting cannot deadlock.
package pool

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/internal/clock"
)

// Body is the loop body of a job. Task executes the i-th task. No two goroutines are ever inside Task with the same
// worker index at the same time, so the index may select scratch memory: see Local.
type Body interface {
	Task(i, worker int)
}

const (
	helperMask = 1<<16 - 1 // helpers inside the job
	openBit    = 1 << 16   // tasks may remain
	sleepBit   = 1 << 17   // the caller waits on done
	generation = 1 << 32   // one job

	spinTime   = 40 * time.Microsecond
	backTime   = 2 * time.Millisecond // longer than most tasks
	spinRounds = 16                   // checks of the state between checks of the clock
)

// Pool is a set of workers. It is safe for use by several goroutines. Its zero value is not usable: call New.
type Pool struct {
	busy    atomic.Bool // held by the caller whose job the helpers work on
	helpers []*helper
	exited  sync.WaitGroup

	state atomic.Uint64
	_     [56]byte // padding: spinning helpers read state while working ones write next
	next  atomic.Int64
	_     [56]byte

	// The job; written only while no helper is inside.
	tasks int
	body  Body
	quit  bool
	done  chan struct{}

	// Yield, if not nil, is called by workers between tasks (see StepBack), to let goroutines run that would
	// otherwise get no core. Set it before the first Run.
	Yield func()

	failed atomic.Pointer[Panic] // the first panic of the job

	loners loners
}

// helper is one of the Pool's own goroutines.
type helper struct {
	parked atomic.Bool
	bed    bed
}

// New starts a Pool of the given number of workers, including the caller of Run; less than one means one per usable
// processor (GOMAXPROCS). Close stops its goroutines.
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
// calls have returned. What the tasks wrote is visible to the caller. If a task panics, tasks not yet begun are
// skipped and Run panics with a *Panic (or, if it runs alone, with the value itself).
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

// Panic is the value that Run panics with after a task panicked on any worker: the first task's value, and its stack.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("%v\n%s", p.Value, p.Stack) }

// guarded executes tasks until none is left or one panics, which ends the job.
func (p *Pool) guarded(worker int) {
	defer func() {
		if v := recover(); v != nil {
			p.failed.CompareAndSwap(nil, &Panic{v, debug.Stack()})
			p.next.Store(int64(p.tasks))
		}
	}()
	p.work(worker)
}

// runAlone executes a job on the calling goroutine under a unique worker index.
func (p *Pool) runAlone(tasks int, body Body) {
	w := p.loners.take()
	defer p.loners.put(w)
	for i := range tasks {
		body.Task(i, w)
		p.StepBack()
	}
}

// wake wakes parked helpers. Spinning helpers count towards the n that are needed.
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

// work executes tasks until none is left.
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

// StepBack calls Yield. Tasks longer than some hundred microseconds must call it now and then.
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

// help is the main loop of a helper.
func (p *Pool) help(h *helper, worker int) {
	defer p.exited.Done()
	var last uint64 // the generation of the last job this helper took part in
	idle := func() bool {
		s := p.state.Load()
		return s&openBit == 0 || s/generation == last
	}
	for {
		if spinWhile(idle) {
			runtime.Gosched() // asleep on a futex, the goroutine would still hold its P, which others may want now
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

// park sleeps until somebody wakes the helper, unless there is work already. The second check of the state closes the
// gap between the end of the spin and the flag: a Run that opened a job in between saw no parked helper and woke
// none.
func (h *helper) park(idle func() bool) {
	h.bed.lie()
	h.parked.Store(true)
	if !idle() && h.parked.CompareAndSwap(true, false) {
		h.bed.rise()
		return
	}
	h.bed.sleep()
}

// spinWhile busy-waits until cond is false, for at most about spinTime, and returns the last value of cond.
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
			start = clock.Now()
		} else if clock.Since(start) > spinTime {
			return cond()
		}
	}
}

// yieldWhile yields to other goroutines until cond is false, for at most about backTime, and returns the last value
// of cond. The caller of Run does this before it sleeps: its thread would sleep too, and might be woken on the
// helper's core (see bed) while another is idle for milliseconds.
func yieldWhile(cond func() bool) bool {
	for start := clock.Now(); cond(); runtime.Gosched() {
		if clock.Since(start) > backTime {
			return cond()
		}
	}
	return false
}

// Close stops the goroutines of the Pool and returns when they have ended. No Run may be in progress or follow.
func (p *Pool) Close() {
	if len(p.helpers) == 0 || !p.busy.CompareAndSwap(false, true) {
		return
	}
	p.quit = true
	p.state.Store(p.state.Load()&^(generation-1) + generation | openBit)
	p.wake(len(p.helpers))
	p.exited.Wait()
}
