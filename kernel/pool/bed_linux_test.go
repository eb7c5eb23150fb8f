package pool

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWakesFree: a helper that slept gets its original affinity mask back, though its waker
// excluded a core while it slept.
func TestWakesFree(t *testing.T) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Skip("threads cannot be asked for their cores:", err)
	}
	p := New(3)
	defer p.Close()
	var narrowed atomic.Int32
	for range 50 {
		for _, h := range p.helpers {
			for !h.parked.Load() {
				runtime.Gosched()
			}
		}
		var met sync.WaitGroup // all workers take part
		met.Add(p.Workers())
		var cores [3]unix.CPUSet
		p.Run(p.Workers(), Func(func(_, worker int) {
			met.Done()
			met.Wait()
			if err := unix.SchedGetaffinity(0, &cores[worker]); err != nil {
				t.Error(err)
			}
			if worker > 0 && p.helpers[worker-1].bed.narrow {
				narrowed.Add(1)
			}
		}))
		for i := range p.helpers {
			if cores[i+1] != all {
				t.Fatalf("worker %d may run on %d cores after it slept, %d before", i+1, cores[i+1].Count(), all.Count())
			}
		}
	}
	if all.Count() > 1 && narrowed.Load() == 0 {
		t.Error("no helper was ever kept off the core of its waker")
	}
}
