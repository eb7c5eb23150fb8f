package train

import (
	"fmt"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/job"
)

// tying decides when layers that share parameters get their own (delink_at: auto). Steps are taken in windows of a twentieth of the run,
// and a window's fall is by how much the mean of its losses is below that of the window before:
//
//	window  1     2     3     4     5     6     ...
//	mean    7.1   5.9   5.2   4.9  ->  fall 0.3 < a third of 1.2: here
//
// Layers are tied as long as the loss falls fast: until a window's fall is less than a third of the greatest so far, but at least for
// three windows and at most for six. The M6-10T paper (2110.03888) ends the first stage when its loss converges, and gives no figures;
// these are our own. Only losses count, no times, so that the step is the same on any machine. Checkpoints hold this state, so that a
// resumed run decides likewise, also where max_steps is another by then.
type tying struct {
	Window int       `json:"tie_window,omitempty"` // steps
	Means  []float64 `json:"tie_means,omitempty"`  // loss of each complete window
	Sum    float64   `json:"tie_sum,omitempty"`    // of losses of the incomplete one
	Count  int       `json:"tie_count,omitempty"`  // of its steps
	At     int       `json:"delink_step,omitempty"`
}

const (
	windowsOfRun = 20
	leastTied    = 3 // windows
	mostTied     = 6
	slow         = 1. / 3 // of the greatest fall
)

// add records a step's loss and decides at the end of a window; if this is the step, it says why.
func (s *tying) add(spec *job.Spec, step int, loss float64) string {
	if spec.Tied == 0 || spec.DelinkAt != config.AutoDelink || s.At > 0 || !stat.Finite(loss) {
		return ""
	}
	if s.Window == 0 {
		s.Window = max(1, spec.MaxSteps/windowsOfRun)
	}
	if s.Sum, s.Count = s.Sum+loss, s.Count+1; s.Count < s.Window {
		return ""
	}
	s.Means, s.Sum, s.Count = append(s.Means, s.Sum/float64(s.Window)), 0, 0
	n := len(s.Means)
	if n < leastTied {
		return ""
	}
	var fall, greatest float64
	for k := 1; k < n; k++ {
		fall = s.Means[k-1] - s.Means[k]
		greatest = max(greatest, fall)
	}
	why := fmt.Sprintf("less than a third of the most in a window, %.4f", greatest)
	switch {
	case fall < slow*greatest:
	case n >= mostTied:
		why = fmt.Sprintf("layers have been tied for %d of %d windows", n, windowsOfRun)
	default:
		return ""
	}
	s.At = step
	return fmt.Sprintf("delink_at: in the last %d steps the loss fell by %.4f: %s; after step %d layers have parameters of their own", s.Window, fall, why, step)
}

// until returns the step at which a run ends, or its layers get parameters of their own.
func (s *tying) until(spec *job.Spec) int {
	switch at := spec.DelinkAt; {
	case spec.Tied == 0:
	case at == config.AutoDelink && s.At > 0:
		return min(spec.MaxSteps, s.At)
	case at > 0:
		return min(spec.MaxSteps, at)
	}
	return spec.MaxSteps
}

// check refuses a checkpoint's state that no run of that many steps can have written.
func (s *tying) check(steps int) error {
	if s.Window < 0 || s.Count < 0 || s.Count > steps || s.Count > 0 && s.Count >= s.Window || s.At < 0 || s.At > steps || len(s.Means) > windowsOfRun || len(s.Means)*s.Window > steps {
		return fmt.Errorf("the recorded state of delink_at is inconsistent: %d steps, %d windows of %d, %d more, delinked at step %d; hint: resume from another checkpoint", steps, len(s.Means), s.Window, s.Count, s.At)
	}
	return nil
}
