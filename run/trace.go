package run

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/draw"
)

// arrowsUpTo is the number of instructions up to which a trace shows waits as
// arrows; viewers are slow to draw more.
const arrowsUpTo = 5000

// traced reports whether the step just done is the one whose timeline is kept:
// the second of a process, since the first finds cold caches, or the last.
func (t *Trainer) traced() bool {
	n := len(t.Measured)
	return n == 2 || n == 1 && t.Step == t.Setup.Config.MaxSteps
}

// trace writes trace.json: the step just done on all ranks, on one clock, and
// before it what was predicted for the first.
func (t *Trainer) trace() error {
	measured, err := t.Session.Timelines(training)
	if err != nil {
		return err
	}
	path := filepath.Join(t.Setup.Config.Out, "trace.json")
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
