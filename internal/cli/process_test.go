package cli

import (
	"runtime/debug"
	"testing"
)

// TestLimitHeap: the heap is limited to what a plan leaves the process, until that is lifted; a user's limit holds.
func TestLimitHeap(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	before := debug.SetMemoryLimit(-1)
	lift := LimitHeap(1 << 40)
	if got := debug.SetMemoryLimit(-1); got != 1<<40-besideHeap {
		t.Errorf("the limit is %d", got)
	}
	lift()
	LimitHeap(0)
	t.Setenv("GOMEMLIMIT", "1GiB")
	LimitHeap(1 << 40)
	if got := debug.SetMemoryLimit(-1); got != before {
		t.Errorf("the limit is %d, before it was %d", got, before)
	}
}

// TestWholeCores: no quota is exceeded by a core that works all the time, except where there is less than one.
func TestWholeCores(t *testing.T) {
	for quota, want := range map[float64]int{0: 0, 0.3: 1, 1: 1, 1.9: 1, 2: 2, 7.5: 7} {
		if got := wholeCores(quota); got != want {
			t.Errorf("quota %v: %d cores, want %d", quota, got, want)
		}
	}
}
