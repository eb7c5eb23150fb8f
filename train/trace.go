package train

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/draw"
	"github.com/athanor-llm/athanor/search"
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

// stepFile has the plan's step beside a measured one, for pages that show it.
const stepFile = "step.json"

// roofFile has what binds the calls of a step, and what faster parts of the machine would bring: a roofline.Report.
const roofFile = "roofline.json"

// predicted returns the predicted step of each distinct rank.
func predicted(best *search.Candidate) (runs []draw.Run) {
	for k, p := range best.Programs {
		runs = append(runs, draw.Run{Name: draw.Predicted, Program: p, Timeline: best.Timelines[k]})
	}
	return runs
}

// writeStep writes step.json to a run's folder.
func writeStep(dir string, runs []draw.Run) error {
	var text bytes.Buffer
	if err := draw.WriteStep(&text, runs...); err != nil {
		return err
	}
	return checkpoint.WriteFile(checkpoint.Disk{}, filepath.Join(dir, stepFile), text.Bytes())
}

// trace writes trace.json: the measured step of all ranks on one clock, preceded by
// the prediction for the first rank. It adds the measured step to step.json.
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
	runs := []draw.Run{{Name: draw.Predicted, Program: t.Plan.Program, Timeline: t.Plan.Timeline}}
	instrs := 0
	for r, p := range t.programs {
		instrs += len(p.Instrs)
		runs = append(runs, draw.Run{Name: fmt.Sprintf("measured at step %d", t.Step), Program: p, Timeline: measured[r]})
	}
	err = draw.Trace(w, instrs <= arrowsUpTo, runs...)
	if err = errors.Join(err, w.Flush(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	before := predicted(t.Plan)
	t.alarms.stalls = waited(before, runs[1:])
	return writeStep(t.Setup.Spec.Out, append(before, runs[1:]...))
}
