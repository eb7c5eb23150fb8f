package train

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/alert"
	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/stat"
)

// Metrics is one step, a line of metrics.jsonl, where a checksum follows its fields. Their names are stable.
type Metrics struct {
	Step         int               `json:"step"`   // optimizer steps done
	Tokens       int64             `json:"tokens"` // trained on so far
	Loss         float64           `json:"loss"`   // of this step's batch, before its update; nats per token, for pairs the mean per pair
	LearningRate float64           `json:"learning_rate"`
	GradNorm     float64           `json:"grad_norm"` // before clipping
	StepSeconds  float64           `json:"step_seconds"`
	Predicted    float64           `json:"predicted_step_seconds"`
	Rate         float64           `json:"tokens_per_second"`
	MFU          float64           `json:"mfu"` // model FLOPs per second over the peak: of a known GPU the maker's, dense; else the measured one
	ValLoss      float64           `json:"val_loss,omitempty"`
	BitsPerByte  float64           `json:"val_bits_per_byte,omitempty"` // of the validation text; absent for pairs and labels
	ValAccuracy  *float64          `json:"val_accuracy,omitempty"`      // share of the texts with labels whose label is guessed
	ValFit       *folder.Closeness `json:"val_fit,omitempty"`           // of texts with values
	Bound        float64           `json:"grad_norm_bound,omitempty"`   // of skip_spikes: the step is skipped if its norm is greater; absent: none yet
	Skipped      bool              `json:"skipped,omitempty"`           // the step changed no weight
	SkippedSteps int               `json:"skipped_steps,omitempty"`     // so far
	Passed       int               `json:"passed_batches,omitempty"`    // before this step: no token of them was learnt
	// Alerts that begin to fire with this step, or are over.
	Alerts          []alert.Event   `json:"alerts,omitempty"`
	*folder.Rewards                 // for pairs
	ValRewards      *folder.Rewards `json:"val_rewards,omitempty"`
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

// metricsLog appends to metrics.jsonl, and writes the same for TensorBoard. It is on the disk before a
// checkpoint is: after a power cut, the steps before the checkpoint are there.
type metricsLog struct {
	f      backlog
	events *eventFile
}

const (
	metricsFile = "metrics.jsonl"
	damagedFile = "metrics.jsonl.damaged" // lines that could not be read
	mostMetrics = 1 << 40                 // bytes
)

// openMetrics opens the log of a run's folder for the steps after the given one. Lines of later steps are
// dropped, so that the file holds each step once; lines that cannot be read are moved to another file. notes
// say which lines are damaged and which steps are missing.
func openMetrics(dir string, step int) (l *metricsLog, notes []string, err error) {
	path := filepath.Join(dir, metricsFile)
	old, err := bounded.ReadFile(path, mostMetrics)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	if own := fmt.Sprint(dir, "/checkpoint-", step); err == nil || paths.Exists(own) { // else the run is new, or goes on from a checkpoint of another folder
		history := readHistory(old, step)
		if notes, err = history.keep(path, len(old)); err != nil {
			return nil, nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, nil, err
	}
	events, err := newEvents(dir, step)
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return &metricsLog{backlog{File: f}, events}, notes, nil
}

// history is what metrics.jsonl says about the steps up to a checkpoint.
type history struct {
	good    []byte   // lines, in ascending order of steps
	damaged []byte   // lines that are not metrics, or not in order
	lines   int      // damaged ones
	missing []string // steps, such as 7 or 3 to 15
}

// readHistory divides the lines of metrics.jsonl. Those of the longest ascending list of steps are good: a step
// whose number is damaged makes no other line doubtful. What follows the last line end is what a killed process
// was writing, and not damage.
func readHistory(text []byte, step int) (h history) {
	var lines [][]byte
	var steps []int // of each line; 0: it is damaged
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var m Metrics
		if json.Unmarshal(line, &m) != nil || m.Step < 1 || !intact(line) {
			m.Step = 0
		}
		if m.Step <= step { // later ones will be repeated
			lines, steps = append(lines, line), append(steps, m.Step)
		}
	}
	good, last := ascending(steps), 0
	for i, line := range lines {
		if !good[i] {
			h.damaged = append(h.damaged, line...)
			h.lines++
			continue
		}
		if last > 0 || steps[i] == 1 { // else the run began at a checkpoint of another folder
			h.lack(last+1, steps[i]-1)
		}
		h.good, last = append(h.good, line...), steps[i]
	}
	h.lack(last+1, step)
	return h
}

// lack records that steps are missing, if first is not after last.
func (h *history) lack(first, last int) {
	switch {
	case first == last:
		h.missing = append(h.missing, fmt.Sprint(first))
	case first < last:
		h.missing = append(h.missing, fmt.Sprintf("%d to %d", first, last))
	}
}

// ascending marks the members of a longest strictly ascending list of positive numbers.
func ascending(list []int) []bool {
	var ends []int // by length less one, the index of the least number with which such a list can end
	before := make([]int, len(list))
	for i, n := range list {
		k, _ := slices.BinarySearchFunc(ends, n, func(end, n int) int { return list[end] - n })
		if n < 1 {
			continue
		}
		if before[i] = -1; k > 0 {
			before[i] = ends[k-1]
		}
		ends = append(ends[:k], append([]int{i}, ends[min(k+1, len(ends)):]...)...)
	}
	member := make([]bool, len(list))
	if len(ends) > 0 {
		for i := ends[len(ends)-1]; i >= 0; i = before[i] {
			member[i] = true
		}
	}
	return member
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealed gives a line a checksum, as a last field that readers may pass over: the CRC-32C of the bytes before it.
func sealed(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte("}"))
	return fmt.Appendf(line, `,"crc":"%08x"}`, crc32.Checksum(line, castagnoli))
}

// intact reports whether a line has its own checksum, or none, as lines of older versions: those end in a number, not in a string.
func intact(line []byte) bool {
	line = bytes.TrimSuffix(line, []byte("\n"))
	at := bytes.LastIndex(line, []byte(`,"crc":`))
	if at < 0 {
		return !bytes.HasSuffix(line, []byte(`"}`))
	}
	return bytes.Equal(sealed(append(bytes.Clone(line[:at]), '}')), line)
}

// keep makes the good lines the file's only ones, and says what is lost.
func (h *history) keep(path string, size int) (notes []string, err error) {
	if h.lines > 0 {
		notes = append(notes, fmt.Sprintf("%s: %d damaged lines are now in %s", path, h.lines, damagedFile))
		if err := appendFile(filepath.Join(filepath.Dir(path), damagedFile), h.damaged); err != nil {
			return nil, err
		}
	}
	if len(h.missing) > 0 {
		const most = 5
		list := strings.Join(h.missing[:min(most, len(h.missing))], ", ")
		if n := len(h.missing) - most; n > 0 {
			list += fmt.Sprintf(" and %d other ranges", n)
		}
		notes = append(notes, fmt.Sprintf("%s lacks steps %s; the run itself is whole", path, list))
	}
	if len(h.good) == size {
		return notes, nil
	}
	return notes, checkpoint.WriteFile(checkpoint.Disk{}, path, h.good)
}

// appendFile adds to a file what then is on the disk.
func appendFile(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// sync returns once all that was added is on the disk.
func (l *metricsLog) sync() error { return errors.Join(l.f.sync(), l.events.file.sync()) }

// add adds a step. An error of the system means that some of it waits in memory, and goes before what is added later.
func (l *metricsLog) add(m Metrics) error {
	line, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("metrics of step %d: %w", m.Step, err)
	}
	curves := []scalar{{"train/loss", m.Loss}, {"train/learning_rate", m.LearningRate}, {"train/grad_norm", m.GradNorm},
		{"perf/tokens_per_second", m.Rate}, {"perf/mfu", m.MFU}, {"perf/step_seconds", m.StepSeconds}}
	if m.Rewards != nil {
		curves = append(curves, rewardCurves("train", m.Rewards)...)
	}
	if m.SkippedSteps > 0 {
		curves = append(curves, scalar{"train/skipped_steps", float64(m.SkippedSteps)})
	}
	return errors.Join(l.f.add(append(sealed(line), '\n')), l.events.add(m.Step, curves...))
}

// validated records a validation loss, bits per byte unless they are 0, for texts with labels the accuracy, for those with values
// how close they are, and, for pairs, rewards.
func (l *metricsLog) validated(step int, loss, bitsPerByte float64, accuracy *float64, fit *folder.Closeness, rewards *folder.Rewards) error {
	curves := []scalar{{"val/loss", loss}}
	if accuracy != nil {
		curves = append(curves, scalar{"val/accuracy", *accuracy})
	}
	if fit != nil {
		curves = append(curves, scalar{"val/pearson", fit.Pearson}, scalar{"val/r2", fit.R2})
	}
	if bitsPerByte > 0 {
		curves = append(curves, scalar{"val/bits_per_byte", bitsPerByte})
	}
	if rewards != nil {
		curves = append(curves, rewardCurves("val", rewards)...)
	}
	return l.events.add(step, curves...)
}

func (l *metricsLog) close() error { return errors.Join(l.f.close(), l.events.close()) }

// rewardCurves returns the points of rewards for TensorBoard.
func rewardCurves(prefix string, r *folder.Rewards) []scalar {
	list := []scalar{{prefix + "/reward_accuracy", r.Accuracy}, {prefix + "/reward_margin", r.Margin}, {prefix + "/reward_chosen", r.Chosen}, {prefix + "/reward_rejected", r.Rejected}}
	if r.Answers > 0 {
		list = append(list, scalar{prefix + "/kl", r.KL})
	}
	return list
}
