package job

import "math"

// Rate returns the learning rate at a step counted from 0: linear warm-up, then
// constant, or cosine or linear decay to the minimum at MaxSteps.
func (s *Spec) Rate(step int) float64 {
	x := 1.0
	if n := s.MaxSteps - s.WarmupSteps; n > 1 {
		x = min(1, float64(step-s.WarmupSteps)/float64(n-1))
	}
	return s.RateAt(step, x)
}

// RateAt is Rate where a share x, 0 to 1, of the decay after the warm-up is over at that step.
func (s *Spec) RateAt(step int, x float64) float64 {
	if step < s.WarmupSteps {
		return s.LearningRate * float64(step+1) / float64(s.WarmupSteps)
	}
	switch s.Schedule {
	case "cosine":
		x = (1 - math.Cos(math.Pi*x)) / 2
	case "constant":
		x = 0
	}
	return s.LearningRate + (s.MinLearningRate-s.LearningRate)*x
}
