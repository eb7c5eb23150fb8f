package train

import (
	"fmt"
	"math"
	"time"

	"github.com/athanor-llm/athanor/config"
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

// end moves the end of the fall, as expected at a step.
func (s *spread) end(step, steps, warmup int) {
	if from := max(step, warmup); from > warmup {
		s.Done, s.From = s.fallen(from, warmup), from
	}
	s.Steps = steps
}

// rate returns the learning rate of a step counted from 0.
func (t *Run) rate(step int) float64 {
	spec := t.Setup.Spec
	if t.spread.Steps == 0 {
		return spec.Rate(step)
	}
	return spec.RateAt(step, t.spread.fallen(step, spec.WarmupSteps))
}

// estimates is the number of estimates in max_time, and look the steps before the first.
const estimates, look = 32, 8

// pace tells how fast steps are, with all that is done between them.
type pace struct {
	began time.Time // less what earlier processes spent
	first time.Time // when the first step of this process ended
	step  int       // the first step
	next  time.Time // of the next estimate
}

// limitTime sets how long a run is expected to be that max_time may end. For the same max_time it is as the checkpoint
// has it; a run whose steps are counted gets that time again once it was over. Otherwise it is as many steps as are
// counted, or as are predicted for the time.
func (t *Run) limitTime() {
	spec, s := t.Setup.Spec, &t.spread
	switch {
	case spec.MaxTime == 0:
		*s = spread{}
	case spec.Timed() && s.Time != spec.MaxTime:
		*s = spread{Time: spec.MaxTime, Steps: t.Step + int(time.Duration(spec.MaxTime).Seconds()/t.Plan.Seconds())}
	case !spec.Timed() && (s.Time != spec.MaxTime || s.Spent >= s.Time):
		*s = spread{Time: spec.MaxTime, Steps: spec.MaxSteps}
	}
	t.extend()
}

// endTime ends a run whose length is its time.
func (t *Run) endTime() {
	if t.Setup.Spec.Timed() {
		t.spread.Steps = t.Step
		t.extend()
	}
}

// within returns a number of steps, or those that the configuration allows if they are fewer.
func (t *Run) within(steps int) int {
	if spec := t.Setup.Spec; !spec.Timed() {
		return min(steps, spec.MaxSteps)
	}
	return steps
}

// extend makes the expected end that of a run that has no other.
func (t *Run) extend() {
	if spec := t.Setup.Spec; spec.Timed() {
		t.Setup.Spec = spec.WithSteps(t.spread.Steps) // one at least
	}
}

// startTime starts the clock of max_time.
func (t *Run) startTime() { t.pace = pace{began: time.Now().Add(-time.Duration(t.spread.Spent))} }

// spentTime returns how much of max_time is spent.
func (t *Run) spentTime() time.Duration { return time.Since(t.pace.began) }

// spreading is what a checkpoint of this step has.
func (t *Run) spreading() spread {
	s := t.spread
	if s.Time > 0 && !t.pace.began.IsZero() {
		s.Spent = config.Duration(t.spentTime())
	}
	return s
}

// timeOver reports whether max_time has passed.
func (t *Run) timeOver() bool {
	limit := time.Duration(t.Setup.Spec.MaxTime)
	return limit > 0 && t.spentTime() >= limit
}

// keepPace estimates anew, from time to time, at which step max_time will be over, and says so if that is much else than
// expected.
func (t *Run) keepPace(o Observer) {
	limit, now := time.Duration(t.Setup.Spec.MaxTime), time.Now()
	if limit == 0 {
		return
	}
	p := &t.pace
	if p.first.IsZero() {
		p.first, p.step, p.next = now, t.Step, now
	}
	if t.Step < p.step+look || now.Before(p.next) {
		return
	}
	p.next = now.Add(limit / estimates)
	each := now.Sub(p.first).Seconds() / float64(t.Step-p.step)
	left := math.Min((limit-t.spentTime()).Seconds()/each, 1e9)
	end, was := t.within(t.Step+max(1, int(left))), t.spread.Steps
	if math.Abs(float64(end-was)) <= 0.01*float64(end-t.Step) {
		return
	}
	t.spread.end(t.Step, end, t.Setup.Spec.WarmupSteps)
	t.extend()
	t.conduct.Settings = settingsOf(t.Setup.Spec)
	if math.Abs(float64(end-was)) > 0.1*float64(was) {
		o.Event(fmt.Sprintf("step %d: max_time %v is good for about %d steps, not %d; the learning rate falls to its end by then", t.Step, limit, end, was))
	}
}
