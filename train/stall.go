package train

import "fmt"

// stall counts the validations in a row that were not better than the best one (early_stop). Checkpoints hold it, so that
// a resumed run ends at the same step.
type stall struct {
	Lowest  float64 `json:"stall_lowest,omitempty"` // loss of a validation
	At      int     `json:"stall_at,omitempty"`     // the step of that validation; 0: there was none
	Last    int     `json:"stall_last,omitempty"`   // the step of the latest validation, which counts once
	Without int     `json:"stall_without,omitempty"`
}

// add records a validation.
func (s *stall) add(step int, loss float64) {
	switch {
	case step == s.Last:
	case s.At == 0 || loss < s.Lowest:
		*s = stall{loss, step, step, 0}
	default:
		s.Last, s.Without = step, s.Without+1
	}
}

// ends reports whether so many validations without a lower loss end the run. 0: none do.
func (s *stall) ends(after int) bool { return after > 0 && s.Without >= after }

// text says why the run ends at a step.
func (s *stall) text(step int) string {
	return fmt.Sprintf("early_stop: %d validations in a row have had no lower loss than %.4f, that of step %d; the run ends at step %d; hint: keep_best keeps the checkpoint with the lowest loss", s.Without, s.Lowest, s.At, step)
}
