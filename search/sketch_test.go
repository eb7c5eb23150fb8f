package search

import (
	"errors"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestSketch: a sketch fits where a plan exists, takes at least as long as the fastest plan, and less work to find.
func TestSketch(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req := long(t)
	for _, mib := range testkit.Sample([]int64{40, 26, 60, 1024}, 1, 1) {
		m := machine(t, mib<<20, 0.2)
		whole := find(t, req, m)
		quick := *req
		quick.Sketch = true
		r, err := Search(t.Context(), &quick, m, nil)
		check(t, err)
		if !r.Best.Fits || r.Best.Seconds() < whole.Best.Seconds() {
			t.Errorf("%d MiB: the sketch takes %.6g s, fits: %v; the fastest plan takes %.6g s", mib, r.Best.Seconds(), r.Best.Fits, whole.Best.Seconds())
		}
		if mib < 1024 && 2*r.Evaluated > whole.Evaluated {
			t.Errorf("%d MiB: %d candidates for a sketch, %d for the fastest plan", mib, r.Evaluated, whole.Evaluated)
		}
	}
	quick := *req
	quick.Sketch = true
	if _, err := Search(t.Context(), &quick, machine(t, 1<<20, 1), nil); !errors.Is(err, ErrDoesNotFit) {
		t.Errorf("a sketch in too little memory: %v", err)
	}
}
