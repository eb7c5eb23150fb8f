package job

import (
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/optimizer"
)

// Rate returns the learning rate at a step counted from 0: linear warm-up, then what the schedule says until the last of
// MaxSteps.
func (s *Spec) Rate(step int) float64 {
	x := 1.0
	if n := s.MaxSteps - s.WarmupSteps; n > 1 {
		x = min(1, float64(step-s.WarmupSteps)/float64(n-1))
	}
	return s.RateAt(step, x)
}

// RateAt is Rate where a share x, 0 to 1, of the time after the warm-up is over at that step.
func (s *Spec) RateAt(step int, x float64) float64 {
	if step < s.WarmupSteps {
		return s.LearningRate * float64(step+1) / float64(s.WarmupSteps)
	}
	fall, err := optimizer.RateScheduleNamed(s.Schedule)
	if err != nil {
		panic("job: rate: " + err.Error()) // package config refuses it
	}
	return s.LearningRate + (s.MinLearningRate-s.LearningRate)*fall.Fallen(x, s.decayShare())
}

// usualDecay is the share of the steps after the warm-up in which wsd decays if the configuration does not say.
const usualDecay = 0.2

// decayShare returns the share of the steps after the warm-up that are the decay. Its first step is the first with less
// than the peak, and its last has the minimum.
func (s *Spec) decayShare() float64 {
	n := s.MaxSteps - s.WarmupSteps
	if s.DecaySteps == config.Derived || n <= 1 {
		return usualDecay
	}
	return min(1, float64(s.DecaySteps)/float64(n-1))
}
