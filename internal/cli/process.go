package cli

import (
	"os"
	"runtime"
	"runtime/debug"

	"github.com/athanor-llm/athanor/internal/sysmem"
)

// obeyQuota makes kernels use as many cores as a quota of CPU time pays for, one at least: with more they would use it
// up early in each period and then all stand still, while the probe, which is shorter, would see none of that. A user's
// GOMAXPROCS holds.
func obeyQuota() {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	if n := wholeCores(sysmem.Cores()); n > 0 && n < runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(n)
	}
}

// limitGarbage keeps the heap within half of the memory that is left to the process, as far as it is garbage: in a small
// container it would grow into the rest. A user's GOMEMLIMIT holds.
func limitGarbage() {
	if m, err := sysmem.Read(); err == nil && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(max(m.Available/2, besideHeap))
	}
}

// besideHeap is what a process has outside of Go's heap and its arenas: code, tables of the runtime, threads' stacks.
const besideHeap = 16 << 20

// LimitHeap makes the garbage collector keep the heap within what a plan leaves to the process, so that garbage does
// not grow into the arenas' room; 0: no plan leaves it anything. lift ends that, for work without arenas or with those
// of another plan. A user's GOMEMLIMIT holds.
func LimitHeap(process int64) (lift func()) {
	if os.Getenv("GOMEMLIMIT") != "" || process <= besideHeap {
		return func() {}
	}
	before := debug.SetMemoryLimit(process - besideHeap)
	return func() { debug.SetMemoryLimit(before) }
}

// wholeCores returns the number of cores that a quota pays for; 0: there is none.
func wholeCores(quota float64) int {
	if quota <= 0 {
		return 0
	}
	return max(1, int(quota))
}
