package pool

import (
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// Func adapts a function to Body.
type Func func(i, worker int)

func (f Func) Task(i, worker int) { f(i, worker) }

// counter counts how often each task ran and detects two concurrent tasks with one worker index.
type counter struct {
	t      *testing.T
	counts []atomic.Int32
	inside Local[atomic.Int32]
	each   func(i int)
}

func (c *counter) Task(i, worker int) {
	in := c.inside.Get(worker)
	if in.Add(1) != 1 {
		c.t.Errorf("worker %d does two tasks at once", worker)
	}
	if c.each != nil {
		c.each(i)
	}
	c.counts[i].Add(1)
	in.Add(-1)
}

func (c *counter) check(n int) {
	c.t.Helper()
	for i := range c.counts {
		if got := int(c.counts[i].Load()); got != n {
			c.t.Fatalf("task %d ran %d times, want %d", i, got, n)
		}
	}
}

func TestEveryTaskOnce(t *testing.T) {
	for _, workers := range []int{1, 2, 3, 8} {
		p := New(workers)
		if p.Workers() != workers {
			t.Fatalf("Workers() = %d, want %d", p.Workers(), workers)
		}
		for _, tasks := range []int{0, 1, 2, 3, 7, 100, 1000} {
			c := &counter{t: t, counts: make([]atomic.Int32, tasks)}
			for range 50 {
				p.Run(tasks, c)
			}
			c.check(50)
		}
		p.Close()
	}
}

// TestParked lets the helpers park between jobs, and the caller while it waits for a helper's long task.
func TestParked(t *testing.T) {
	p := New(3)
	defer p.Close()
	var both sync.WaitGroup
	c := &counter{t: t, counts: make([]atomic.Int32, 2)}
	c.each = func(i int) { // the two tasks wait for each other, so both workers must take part
		both.Done()
		both.Wait()
		if i == 1 {
			for start := time.Now(); time.Since(start) < 10*spinTime+backTime; {
				runtime.Gosched()
			}
		}
	}
	for n := range 30 {
		for _, h := range p.helpers {
			for !h.parked.Load() {
				runtime.Gosched()
			}
		}
		both.Add(2)
		p.Run(2, c)
		c.check(n + 1)
	}
}

func TestConcurrentAndNested(t *testing.T) {
	p := New(4)
	defer p.Close()
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			inner := &counter{t: t, counts: make([]atomic.Int32, 5)}
			outer := &counter{t: t, counts: make([]atomic.Int32, 20)}
			outer.each = func(int) { p.Run(5, inner) }
			for range 100 {
				p.Run(20, outer)
			}
			outer.check(100)
			inner.check(2000)
		})
	}
	all.Wait()
}

// TestVisible passes plain memory from the caller to the tasks and back, for the race detector to check.
func TestVisible(t *testing.T) {
	p := New(4)
	defer p.Close()
	data := make([]int, 64)
	add := Func(func(i, _ int) { data[i]++ })
	for n := range 200 {
		p.Run(len(data), add)
		for i := range data {
			if data[i] != 2*n+1 {
				t.Fatalf("data[%d] = %d after %d jobs", i, data[i], n)
			}
			data[i]++
		}
	}
}

func TestNoAllocation(t *testing.T) {
	p := New(2)
	defer p.Close()
	var sum atomic.Int64
	var local Local[int]
	var body Body = Func(func(i, w int) { *local.Get(w)++; sum.Add(1) })
	p.Run(10, body)
	if n := testing.AllocsPerRun(100, func() { p.Run(10, body); p.Run(1, body) }); n != 0 {
		t.Errorf("%v allocations per Run, want 0", n)
	}
}

func TestCloseEndsGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	p := New(8)
	p.Run(8, Func(func(int, int) {}))
	p.Close()
	testkit.GoroutinesEnd(t, before)
}

// BenchmarkForkJoin measures an empty job while the helpers still spin.
func BenchmarkForkJoin(b *testing.B) {
	p := New(0)
	defer p.Close()
	var body Body = Func(func(int, int) {})
	for b.Loop() {
		p.Run(p.Workers(), body)
	}
}

// BenchmarkWake measures a job of 2.5 ms for each of two workers after the cores have slept for 10 ms. The excess
// over 2.5 ms is the cost of waking.
func BenchmarkWake(b *testing.B) {
	p := New(2)
	defer p.Close()
	var body Body = Func(func(int, int) {
		for start := time.Now(); time.Since(start) < 100*time.Microsecond; {
		}
	})
	var total time.Duration
	for b.Loop() {
		time.Sleep(10 * time.Millisecond)
		start := time.Now()
		p.Run(50, body)
		total += time.Since(start)
	}
	b.ReportMetric(float64(total.Microseconds())/float64(b.N), "us/job")
}

// TestPanic: Run passes on a panic of any worker, and the pool stays usable.
func TestPanic(t *testing.T) {
	p := New(3)
	defer p.Close()
	for round := range 200 {
		bad := round % 50
		got := func() (v any) {
			defer func() { v = recover() }()
			p.Run(50, Func(func(i, _ int) {
				if i == bad {
					panic("task " + strconv.Itoa(i))
				}
			}))
			return nil
		}()
		if e, ok := got.(*Panic); !ok || e.Value != "task "+strconv.Itoa(bad) {
			t.Fatalf("round %d: Run panicked with %v", round, got)
		}
		var n atomic.Int64
		p.Run(100, Func(func(int, int) { n.Add(1) }))
		if n.Load() != 100 {
			t.Fatalf("round %d: %d of 100 tasks ran afterwards", round, n.Load())
		}
	}
}
