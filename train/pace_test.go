package train

import (
	"testing"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/job"
)

// TestSpread: before an estimate the rates are those of the configuration, bit for bit; however often the end moves, the
// fall never jumps or rises, and is over at the last step.
func TestSpread(t *testing.T) {
	cfg := config.Default()
	cfg.MaxSteps, cfg.WarmupSteps, cfg.LearningRate, cfg.MinLearningRate = 100, 10, 1, 0.1
	spec, err := job.Settle(config.ToRead, &cfg, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	r := &timing{spread: spread{Steps: 100}}
	for step := range 100 {
		if got, want := r.rate(spec, step), spec.Rate(step); got != want {
			t.Fatalf("step %d: rate %v, the configuration's is %v", step, got, want)
		}
	}
	before := 0.0
	for step, end := 0, 100; step < end; step++ {
		if moved := map[int]int{5: 80, 20: 50, 35: 200, 150: 160}[step]; moved > 0 {
			at := r.rate(spec, step)
			end = moved
			if r.spread.moveEnd(step, end, 10); r.rate(spec, step) != at && step > 10 {
				t.Errorf("step %d: the rate jumps from %v to %v", step, at, r.rate(spec, step))
			}
		}
		now := r.spread.fallen(step, 10)
		if step >= 10 && (now < before || now > before+0.1) {
			t.Errorf("step %d: %v has fallen, before it %v", step, now, before)
		}
		if before = max(now, 0); step == end-1 && now != 1 {
			t.Errorf("at the last step %v has fallen", now)
		}
	}
}

// TestLastValidation: steps end early enough for the validation after them, which gets half of the time at most; a run that was
// ended by its time has spent all of it.
func TestLastValidation(t *testing.T) {
	for _, c := range []struct{ last, spent time.Duration }{{0, time.Hour}, {time.Minute, 59 * time.Minute}, {3 * time.Hour, 30 * time.Minute}} {
		r := &timing{spread: spread{Time: config.Duration(time.Hour), Spent: config.Duration(c.spent - time.Second)}, last: c.last}
		if r.start(); r.timeOver() {
			t.Errorf("%v before the last steps, the time is over", time.Second)
		}
		r.spread.Spent += config.Duration(time.Second)
		if r.start(); !r.timeOver() {
			t.Errorf("with a validation of %v, steps may take more than %v", c.last, c.spent)
		}
		r.end(&Setup{Spec: &job.Spec{}}, 10)
		if spent := r.record().Spent; spent < r.spread.Time {
			t.Errorf("%v of %v are spent", spent, r.spread.Time)
		}
	}
}
