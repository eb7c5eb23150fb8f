package watch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"

	"github.com/athanor-llm/athanor/alert"
)

// Bounds of what one run takes here.
const (
	mostRows    = 2 << 20 // steps
	mostColumns = 64
	longestLine = 64 << 10 // bytes
)

// history is what a run's metrics.jsonl says, by columns. It grows with the file: read goes on where it ended.
type history struct {
	steps   []float64 // ascending
	columns map[string][]float64
	offset  int64 // of the first byte that has not been read
	file    fs.FileInfo
	damaged int  // lines that could not be read, or whose steps do not ascend
	cut     bool // there are more steps than are kept
	row     map[string]float64
	alerts  []alert.Event // the latest
}

// mostAlerts is how many are kept.
const mostAlerts = 1000

// Columns that are derived from others. A run's own have other names.
const (
	elapsed       = "elapsed_seconds"             // the sum of the steps' times
	predictedRate = "predicted_tokens_per_second" // had the step taken the predicted time
	predictedMFU  = "predicted_mfu"
)

// absent is the value of a column at a step that has none. What is there but not finite is an infinity.
var absent = math.NaN()

// read reads what was added to the file since the last time, all of it if the file is another one or was cut. What
// follows the last line end is being written, and is left for the next time.
func (h *history) read(f *os.File) (changed bool, err error) {
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() {
		return false, errors.New("metrics.jsonl is not a file")
	}
	if h.file == nil || !os.SameFile(h.file, info) || info.Size() < h.offset {
		*h = history{columns: map[string][]float64{}, row: map[string]float64{}}
		changed = true
	}
	h.file = info
	if info.Size() == h.offset {
		return changed, nil
	}
	if _, err := f.Seek(h.offset, io.SeekStart); err != nil {
		return changed, err
	}
	lines := bufio.NewReaderSize(f, longestLine)
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull): // whatever this is, it is no line of metrics
			h.offset += int64(len(line))
			h.damaged++
		case errors.Is(err, io.EOF):
			return changed, nil
		case err != nil:
			return changed, err
		default:
			h.offset += int64(len(line))
			h.add(line)
		}
		changed = true
	}
}

// add adds a line.
func (h *history) add(line []byte) {
	if len(h.steps) >= mostRows {
		h.cut = true
		return
	}
	clear(h.row)
	err := numbers(line, func(key []byte, x float64) {
		if len(h.row) < mostColumns {
			h.row[string(key)] = x
		}
	})
	step, ok := h.row["step"]
	if err != nil || !ok || math.IsInf(step, 0) || len(h.steps) > 0 && step <= h.steps[len(h.steps)-1] {
		h.damaged++
		return
	}
	h.addAlerts(line)
	h.derive()
	n := len(h.steps)
	h.steps = append(h.steps, step)
	for key, x := range h.row {
		column, known := h.columns[key]
		if !known && len(h.columns) >= mostColumns {
			continue
		}
		for len(column) < n {
			column = append(column, absent)
		}
		h.columns[key] = append(column, x)
	}
}

// addAlerts adds those of a line, if it has any.
func (h *history) addAlerts(line []byte) {
	if !bytes.Contains(line, []byte(`"alerts":[`)) {
		return
	}
	var v struct{ Alerts []alert.Event }
	if json.Unmarshal(line, &v) != nil {
		return // numbers has found the line good; whatever this is, it is no list of alerts
	}
	h.alerts = append(h.alerts, v.Alerts...)
	if n := len(h.alerts) - mostAlerts; n > 0 {
		h.alerts = slices.Delete(h.alerts, 0, n)
	}
}

// firing returns whether each alert that ever fired does so now.
func (h *history) firing() map[string]bool {
	list := map[string]bool{}
	for _, e := range h.alerts {
		list[e.Rule] = e.Firing
	}
	return list
}

// derive adds the derived columns to the row.
func (h *history) derive() {
	seconds, ok := h.row["step_seconds"]
	if !ok {
		return
	}
	before := 0.0
	if list := h.columns[elapsed]; len(list) > 0 {
		before = list[len(list)-1]
	}
	h.row[elapsed] = before + seconds
	if predicted := h.row["predicted_step_seconds"]; predicted > 0 {
		h.row[predictedRate] = h.row["tokens_per_second"] * seconds / predicted
		h.row[predictedMFU] = h.row["mfu"] * seconds / predicted
	}
}

// column returns a column's values by row; absent ones at its end may be missing. nil: there is no such column.
func (h *history) column(key string) []float64 {
	if key == "step" {
		return h.steps
	}
	return h.columns[key]
}

// keys returns the names of the columns, sorted.
func (h *history) keys() []string {
	list := make([]string, 0, len(h.columns))
	for k := range h.columns {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

// latest returns the last value of each column. A column ends with its last value.
func (h *history) latest() map[string]float64 {
	last := make(map[string]float64, len(h.columns))
	for key, column := range h.columns {
		last[key] = column[len(column)-1]
	}
	return last
}
