package train

import (
	"testing"
	"time"
)

// TestSilence: a step is watched for as long as its usual time allows, but not the first one, and no longer than it lasts.
func TestSilence(t *testing.T) {
	var s silence
	told := make(chan int, 10)
	tell := func(step int, after time.Duration) {
		if after != time.Hour {
			t.Errorf("after %v", after)
		}
		told <- step
	}
	s.begin(1, 180, tell)
	if s.timer != nil {
		t.Error("the first step is watched")
	}
	s.end(170)
	s.begin(2, 180, tell)
	s.timer.Reset(0) // time passes
	if step := <-told; step != 2 {
		t.Errorf("step %d", step)
	}
	s.end(170)
	s.begin(3, 180, tell)
	if s.end(170); s.timer.Stop() {
		t.Error("a step that has ended is watched")
	}
	for seconds, want := range map[float64]time.Duration{0.01: 15 * time.Second, 2: 40 * time.Second} {
		if got := patienceFor(seconds); got != want {
			t.Errorf("%v s: %v", seconds, got)
		}
	}
}
