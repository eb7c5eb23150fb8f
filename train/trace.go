package train

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/draw"
)

// arrowsUpTo bounds the instructions of a trace that shows waits as arrows; viewers
// are slow to draw more.
const arrowsUpTo = 5000

// traced reports whether to record the step just done: the second of a process,
// since the first runs with cold caches, or the last.
func (t *Run) traced() bool {
	n := len(t.Measured)
	return n == 2 || n == 1 && t.Step == t.Setup.Spec.MaxSteps
}

// trace writes trace.json: the measured step of all ranks on one clock, preceded by
// the prediction for the first rank.
func (t *Run) trace() error {
	measured, err := t.Session.Timelines(training)
	if err != nil {
		return err
	}
	path := filepath.Join(t.Setup.Spec.Out, "trace.json")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	runs := []draw.Run{{Name: "predicted", Program: t.Plan.Program, Timeline: t.Plan.Timeline}}
	instrs := 0
	for r, p := range t.programs {
		instrs += len(p.Instrs)
		runs = append(runs, draw.Run{Name: fmt.Sprintf("measured at step %d", t.Step), Program: p, Timeline: measured[r]})
	}
	err = draw.Trace(w, instrs <= arrowsUpTo, runs...)
	if err = errors.Join(err, w.Flush(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
