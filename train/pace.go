package train

import (
	"fmt"
	"math"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/job"
)

// The end of a run that max_time ends.
//
// Such a run is as long as its steps are fast, so the step at which it will end is estimated from the pace so far, again
// and again. Each estimate spreads what is left of the fall of the learning rate over the steps that are left: the rate
// has no jumps, and is at its end when the time is. Estimates are in the checkpoint, so a run that is resumed goes on
// with the same rates, and with the time that it had left.
//
// Known weakness: steps that were done again after a crash may have other learning rates.

// spread is what a checkpoint has of the end that max_time sets.
type spread struct {
	Time  config.Duration `json:"spread_time,omitempty"`  // the max_time that all else was derived from
	Steps int             `json:"spread_steps,omitempty"` // at which that time is expected to be over
	From  int             `json:"spread_from,omitempty"`  // the step of the estimate; 0: before the first one
	Done  float64         `json:"spread_done,omitempty"`  // how much of the rate's fall was behind then, 0 to 1
	Spent config.Duration `json:"spread_spent,omitempty"` // of max_time, when the checkpoint was written
}

// fallen returns how much of the learning rate's fall is behind at a step, 0 to 1.
func (s *spread) fallen(step, warmup int) float64 {
	from := max(s.From, warmup)
	if n := s.Steps - from; n > 1 {
		return min(1, s.Done+(1-s.Done)*float64(step-from)/float64(n-1))
	}
	return 1
}

// moveEnd moves the end of the fall, as expected at a step.
func (s *spread) moveEnd(step, steps, warmup int) {
	if from := max(step, warmup); from > warmup {
		s.Done, s.From = s.fallen(from, warmup), from
	}
	s.Steps = steps
}

// estimates is the number of estimates in max_time, and look the steps before the first.
const estimates, look = 32, 8

// timing knows how long a run may take, and how fast this process is with all that it does between steps.
type timing struct {
	spread spread
	began  time.Time     // less what earlier processes spent
	first  time.Time     // when the first step of this process ended
	step   int           // the first step
	next   time.Time     // of the next estimate
	last   time.Duration // that the validation after the last step is expected to take
}

// room returns how much of a limit is for steps: the last validation counts too, but leaves them half.
func (t *timing) room(limit config.Duration) time.Duration {
	return time.Duration(limit) - min(t.last, time.Duration(limit)/2)
}

// rate returns the learning rate of a step counted from 0.
func (t *timing) rate(spec *job.Spec, step int) float64 {
	if t.spread.Steps == 0 {
		return spec.Rate(step)
	}
	return spec.RateAt(step, t.spread.fallen(step, spec.WarmupSteps))
}

// limit sets how long a run is expected to be that max_time may end, at a step and with a prediction in seconds. For the
// same max_time it is as the checkpoint has it; a run whose steps are counted gets that time again once it was over.
// Otherwise it is as many steps as are counted, or as are predicted for the time.
func (t *timing) limit(s *Setup, step int, predicted float64) {
	spec, sp := s.Spec, &t.spread
	switch {
	case spec.MaxTime == 0:
		*sp = spread{}
	case spec.Timed() && sp.Time != spec.MaxTime:
		*sp = spread{Time: spec.MaxTime, Steps: step + int(t.room(spec.MaxTime).Seconds()/predicted)}
	case !spec.Timed() && (sp.Time != spec.MaxTime || sp.Spent >= sp.Time):
		*sp = spread{Time: spec.MaxTime, Steps: spec.MaxSteps}
	}
	t.setSteps(s)
}

// setSteps makes the expected end that of a run that has no other.
func (t *timing) setSteps(s *Setup) {
	if s.Spec.Timed() {
		s.Spec = s.Spec.WithSteps(t.spread.Steps)
	}
}

// start starts the clock of max_time.
func (t *timing) start() {
	*t = timing{spread: t.spread, last: t.last, began: time.Now().Add(-time.Duration(t.spread.Spent))}
}

// timeOver reports whether max_time has passed, but for the last validation.
func (t *timing) timeOver() bool {
	return t.spread.Time > 0 && time.Since(t.began) >= t.room(t.spread.Time)
}

// end ends a run, whose time is over, at a step. What is left is the last validation's.
func (t *timing) end(s *Setup, step int) {
	if over := time.Now().Add(-time.Duration(t.spread.Time)); over.Before(t.began) {
		t.began = over
	}
	if s.Spec.Timed() {
		t.spread.Steps = step
		t.setSteps(s)
	}
}

// record returns what a checkpoint has.
func (t *timing) record() spread {
	sp := t.spread
	if sp.Time > 0 && !t.began.IsZero() {
		sp.Spent = config.Duration(time.Since(t.began))
	}
	return sp
}

// keep estimates anew, from time to time, at which step max_time will be over. It reports whether that is another one
// than expected, and says so if it is quite another.
func (t *timing) keep(s *Setup, step int) (text string, moved bool) {
	limit, now := time.Duration(t.spread.Time), time.Now()
	if limit == 0 {
		return "", false
	}
	if t.first.IsZero() {
		t.first, t.step, t.next = now, step, now
	}
	if step < t.step+look || now.Before(t.next) {
		return "", false
	}
	t.next = now.Add(limit / estimates)
	each := now.Sub(t.first).Seconds() / float64(step-t.step)
	left := math.Min((t.room(t.spread.Time)-now.Sub(t.began)).Seconds()/each, 1e9)
	end, was := step+max(1, int(left)), t.spread.Steps
	if !s.Spec.Timed() {
		end = min(end, s.Spec.MaxSteps)
	}
	far := math.Abs(float64(end - was))
	if far <= 0.01*float64(end-step) {
		return "", false
	}
	t.spread.moveEnd(step, end, s.Spec.WarmupSteps)
	t.setSteps(s)
	if far > 0.1*float64(was) {
		text = fmt.Sprintf("step %d: max_time %v is good for about %d steps, not %d; the learning rate falls to its end by then", step, limit, end, was)
	}
	return text, true
}
