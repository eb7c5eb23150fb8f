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
	screen, keys := pty.Open(t, 40)
	t.Setenv("TERM", "xterm")
	var spec job.Spec
	spec.MaxSteps = 1600
	u := &training{t: &train.Run{Setup: &train.Setup{Spec: &spec}}, line: cli.NewStatus(keys), began: time.Now()}
	u.Step(train.Metrics{Step: 827, Loss: 4.1953})
	if text := pty.Shown(t, screen, keys); !strings.Contains(text, "step 827/1600  51%  ETA ") {
		t.Errorf("a run's step and end are not in 40 columns: %q", text)
	}
}
