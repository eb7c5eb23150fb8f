package run

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Metrics is one step, a line of metrics.jsonl. The field names are stable.
type Metrics struct {
	Step         int     `json:"step"`   // optimizer steps done
	Tokens       int64   `json:"tokens"` // trained on so far
	Loss         float64 `json:"loss"`   // of this step's batch, before its update; nats per token
	LearningRate float64 `json:"learning_rate"`
	GradNorm     float64 `json:"grad_norm"` // before clipping
	StepSeconds  float64 `json:"step_seconds"`
	Predicted    float64 `json:"predicted_step_seconds"`
	Rate         float64 `json:"tokens_per_second"`
	MFU          float64 `json:"mfu"` // model FLOPs per second over the measured peak
	ValLoss      float64 `json:"val_loss,omitempty"`
}

// metricsLog appends to metrics.jsonl, and writes the same for TensorBoard. On
// resumption the lines after the checkpoint's step are dropped, so that the file holds
// each step once.
type metricsLog struct {
	f      *os.File
	events *eventFile
}

// openMetrics opens the log of a run's folder for the steps after one.
func openMetrics(dir string, step int) (*metricsLog, error) {
	f, err := os.OpenFile(filepath.Join(dir, "metrics.jsonl"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	var keep int64
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		var m Metrics
		if err != nil || json.Unmarshal(line, &m) != nil || m.Step > step {
			break // the end, a torn line, or a step that will be repeated
		}
		keep += int64(len(line))
	}
	if err := f.Truncate(keep); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.Seek(keep, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	events, err := newEvents(dir, step)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &metricsLog{f, events}, nil
}

func (l *metricsLog) add(m Metrics) error {
	line, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("metrics of step %d: %w", m.Step, err)
	}
	if _, err = l.f.Write(append(line, '\n')); err == nil {
		err = l.events.add(m.Step, scalar{"train/loss", m.Loss}, scalar{"train/learning_rate", m.LearningRate}, scalar{"train/grad_norm", m.GradNorm},
			scalar{"perf/tokens_per_second", m.Rate}, scalar{"perf/mfu", m.MFU}, scalar{"perf/step_seconds", m.StepSeconds})
	}
	if err != nil {
		return fmt.Errorf("%w; hint: the latest checkpoint is whole: free some space and start the same command again", err)
	}
	return nil
}

// validated records a validation loss.
func (l *metricsLog) validated(step int, loss float64) error {
	return l.events.add(step, scalar{"val/loss", loss})
}

func (l *metricsLog) close() error { return errors.Join(l.f.Close(), l.events.close()) }
