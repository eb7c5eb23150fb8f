package main

import (
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/pty"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/train"
)

// TestTrainingInNarrowTerminal: the part of a step's line that fits into few columns has the step and when all will be done.
func TestTrainingInNarrowTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	var spec job.Spec
	spec.MaxSteps = 1600
	for columns, words := range map[uint16][]string{40: {"step 827/1600  51%  ETA "}, 80: {"loss 4.1953", "21131 tokens/s", "%"}, 120: {"MFU", "lr", "step 0.0485 s (predicted 0.0477)"}} {
		screen, keys := pty.Open(t, columns)
		u := &training{t: &train.Run{Setup: &train.Setup{Spec: &spec}}, line: cli.NewStatus(keys), began: time.Now()}
		u.Step(train.Metrics{Step: 827, Loss: 4.1953, LearningRate: 8.96e-4, GradNorm: 1.37, Rate: 21131, MFU: 0.635, StepSeconds: 0.0485, Predicted: 0.0477})
		text := pty.Shown(t, screen, keys)
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("no %q in %d columns: %q", w, columns, text)
			}
		}
	}
}
