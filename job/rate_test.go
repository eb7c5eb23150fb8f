package job

import (
	"math"
	"testing"
)

// TestRate: the learning rate rises to its peak in the warm-up, and falls to its minimum as the schedule says.
func TestRate(t *testing.T) {
	s := settled(t, "warmup_steps=10", "max_steps=110", "min_learning_rate=1e-5", "learning_rate=1e-3")
	near := func(step int, want float64) {
		t.Helper()
		if got := s.Rate(step); math.Abs(got-want) > 1e-12 {
			t.Errorf("rate(%d) = %v, want %v", step, got, want)
		}
	}
	near(0, 1e-4)
	near(9, 1e-3)
	near(10, 1e-3)
	near(109, 1e-5)
	near(500, 1e-5)
	s.Schedule = "linear"
	near(109, 1e-5)
	s.Schedule = "constant"
	near(109, 1e-3)
}
