package train

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/internal/stat"
)

// Metrics is one step, a line of metrics.jsonl. The field names are stable.
type Metrics struct {
	Step         int      `json:"step"`   // optimizer steps done
	Tokens       int64    `json:"tokens"` // trained on so far
	Loss         float64  `json:"loss"`   // of this step's batch, before its update; nats per token, for pairs the mean per pair
	LearningRate float64  `json:"learning_rate"`
	GradNorm     float64  `json:"grad_norm"` // before clipping
	StepSeconds  float64  `json:"step_seconds"`
	Predicted    float64  `json:"predicted_step_seconds"`
	Rate         float64  `json:"tokens_per_second"`
	MFU          float64  `json:"mfu"` // model FLOPs per second over the measured peak
	ValLoss      float64  `json:"val_loss,omitempty"`
	Bound        float64  `json:"grad_norm_bound,omitempty"` // of skip_spikes: the step is skipped if its norm is greater; absent: none yet
	Skipped      bool     `json:"skipped,omitempty"`         // the step changed no weight
	SkippedSteps int      `json:"skipped_steps,omitempty"`   // so far
	*Rewards              // for pairs
	ValRewards   *Rewards `json:"val_rewards,omitempty"`
}

// skipped says that a step was skipped, and why.
func (m *Metrics) skipped() string {
	why := "which is not finite"
	if stat.Finite(m.GradNorm) {
		why = fmt.Sprintf("above the bound of %.4g", m.Bound)
	}
	return fmt.Sprintf("step %d is skipped: loss %.4f, gradient norm %.4g, %s; no weight has changed; skipped so far: %d", m.Step, m.Loss, m.GradNorm, why, m.SkippedSteps)
}

// MarshalJSON writes null for a loss or norm that is not finite: JSON has no number for it.
func (m Metrics) MarshalJSON() ([]byte, error) {
	type plain Metrics // without this method
	if stat.Finite(m.Loss) && stat.Finite(m.GradNorm) {
		return json.Marshal(plain(m))
	}
	number := func(x float64) *float64 {
		if !stat.Finite(x) {
			return nil
		}
		return &x
	}
	return json.Marshal(struct {
		plain
		Loss     *float64 `json:"loss"`
		GradNorm *float64 `json:"grad_norm"`
	}{plain(m), number(m.Loss), number(m.GradNorm)})
}

// metricsLog appends to metrics.jsonl, and writes the same for TensorBoard. On
// resumption the lines after the checkpoint's step are dropped, so that the file holds
// each step once.
type metricsLog struct {
	f      *os.File
	events *eventFile
}

// openMetrics opens the log of a run's folder for the steps after the given one.
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
		curves := []scalar{{"train/loss", m.Loss}, {"train/learning_rate", m.LearningRate}, {"train/grad_norm", m.GradNorm},
			{"perf/tokens_per_second", m.Rate}, {"perf/mfu", m.MFU}, {"perf/step_seconds", m.StepSeconds}}
		if m.Rewards != nil {
			curves = append(curves, m.Rewards.curves("train")...)
		}
		if m.SkippedSteps > 0 {
			curves = append(curves, scalar{"train/skipped_steps", float64(m.SkippedSteps)})
		}
		err = l.events.add(m.Step, curves...)
	}
	if err != nil {
		return fmt.Errorf("%w; hint: free some space and start the same command again, which continues from the latest checkpoint, if there is one", err)
	}
	return nil
}

// validated records a validation loss and, for pairs, rewards.
func (l *metricsLog) validated(step int, loss float64, rewards *Rewards) error {
	curves := []scalar{{"val/loss", loss}}
	if rewards != nil {
		curves = append(curves, rewards.curves("val")...)
	}
	return l.events.add(step, curves...)
}

func (l *metricsLog) close() error { return errors.Join(l.f.Close(), l.events.close()) }
