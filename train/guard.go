package train

import (
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/session"
)

// guard decides which steps are skipped (skip_spikes): those whose gradient norm is far above
// that of the steps before, and those whose numbers are not finite. A skipped step changes neither weights nor
// moments nor the number of updates. The decision depends on earlier steps only and is the same on all ranks;
// checkpoints hold this state, so that a resumed run skips the same steps.
type guard struct {
	// Norms are the gradient norms of the latest steps, oldest first. A skipped step is recorded with its bound,
	// so that a single spike hardly widens the usual range, and a new level of norms becomes usual.
	Norms   []float64 `json:"norms,omitempty"`
	Skipped int       `json:"skipped_steps,omitempty"`
	// Broken counts the latest consecutive steps that were skipped because they were not finite.
	Broken int `json:"broken_steps,omitempty"`
}

const (
	guardWindow = 128 // steps; until there are that many, no norm is unusual
	mostBroken  = 8   // steps in a row that are not finite end the run: the weights are at fault, not a batch
)

// bound returns the greatest norm that counts as usual: the given number of standard deviations above the
// mean of the latest steps. 0: there is no bound.
func (g *guard) bound(deviations float64) float64 {
	if deviations == 0 || len(g.Norms) < guardWindow {
		return 0
	}
	var mean, squares float64
	for _, x := range g.Norms {
		mean += x / guardWindow
	}
	for _, x := range g.Norms {
		squares += (x - mean) * (x - mean) / guardWindow
	}
	return mean + deviations*math.Sqrt(squares)
}

// add records a step that was run with a bound.
func (g *guard) add(out session.Outcome, bound float64) {
	if out.Skipped {
		g.Skipped++
	}
	if !stat.Finite(out.Norm) {
		g.Broken++
		return
	}
	g.Broken = 0
	norm := out.Norm
	if out.Skipped && bound > 0 {
		norm = bound
	}
	g.Norms = append(g.Norms[max(0, len(g.Norms)-guardWindow+1):], norm)
}

// check refuses a checkpoint's state that no run of that many steps can have written.
func (g *guard) check(steps int) error {
	if g.Skipped < 0 || g.Skipped > steps || g.Broken < 0 || g.Broken > g.Skipped || len(g.Norms) > min(steps, guardWindow) {
		return fmt.Errorf("the recorded state of skip_spikes is inconsistent: %d steps, %d skipped, %d not finite in a row, %d gradient norms; hint: resume from another checkpoint", steps, g.Skipped, g.Broken, len(g.Norms))
	}
	return nil
}
