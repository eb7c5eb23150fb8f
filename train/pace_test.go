package train

import (
	"testing"

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
