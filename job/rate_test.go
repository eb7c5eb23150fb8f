package job

import (
	"fmt"
	"math"
	"testing"

	"github.com/athanor-llm/athanor/config"
)

// TestRate: the learning rate rises to its peak in the warm-up, and falls to its minimum as the schedule says.
func TestRate(t *testing.T) {
	s := settled(t, "warmup_steps=10", "max_steps=110", "min_learning_rate=1e-5", "learning_rate=1e-3")
	near := func(step int, want float64) {
		t.Helper()
		if got := s.Rate(step); math.Abs(got-want) > 1e-12 {
			t.Errorf("%s: rate(%d) = %v, want %v", s.Schedule, step, got, want)
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

// TestDecay: of wsd, only the last decay_steps have less than the peak. There the rate is get_wsd_schedule's in transformers
// at the end of the step, where its decay is over: linear, or 1-sqrt.
func TestDecay(t *testing.T) {
	const peak, least = 1e-3, 2e-5
	for schedule, fallen := range map[string]func(x float64) float64{"wsd": func(x float64) float64 { return x }, "wsd-sqrt": math.Sqrt} {
		s := settled(t, "warmup_steps=10", "max_steps=110", "decay_steps=25", "min_learning_rate=2e-5", "learning_rate=1e-3", "schedule="+schedule)
		for step := 10; step < 110; step++ {
			want := peak
			if over := step - 84; over > 0 {
				want = peak*(1-fallen(float64(over)/25)) + least*fallen(float64(over)/25)
			}
			if got := s.Rate(step); math.Abs(got-want) > 1e-12 {
				t.Errorf("%s: step %d: %v, want %v", schedule, step, got, want)
			}
		}
		if got := s.Rate(109); math.Abs(got-least) > 1e-15 {
			t.Errorf("%s ends at %v", schedule, got)
		}
	}
}

// TestBranches: runs of constant rate and of wsd have the same rates until the decay begins, wherever it does, so that one
// checkpoint of a long run is where several decays may begin. The usual decay is a fifth, down to 0.
func TestBranches(t *testing.T) {
	long := settled(t, "warmup_steps=10", "max_steps=1000", "schedule=constant")
	for _, end := range []int{50, 400} {
		branch := settled(t, "warmup_steps=10", fmt.Sprint("max_steps=", end+20), "decay_steps=20", "schedule=wsd-sqrt")
		for step := range end {
			if long.Rate(step) != branch.Rate(step) {
				t.Fatalf("step %d: %v and %v", step, long.Rate(step), branch.Rate(step))
			}
		}
		if branch.Rate(end) >= long.Rate(end) || branch.Rate(end+19) != 0 {
			t.Errorf("the decay of steps %d to %d begins with %v and ends with %v", end, end+20, branch.Rate(end), branch.Rate(end+19))
		}
	}
	usual := settled(t, "warmup_steps=0", "max_steps=101", "schedule=wsd")
	if usual.DecaySteps != config.Derived || usual.Rate(80) != usual.LearningRate || usual.Rate(81) >= usual.LearningRate {
		t.Errorf("%v %v %v", usual.DecaySteps, usual.Rate(80), usual.Rate(81))
	}
}
