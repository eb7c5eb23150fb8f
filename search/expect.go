package search

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/internal/stat"
)

// Expectation is what is known of a step's seconds before the run: the best single number, and the range it lies in.
type Expectation struct {
	Seconds float64 `json:"seconds"`
	Low     float64 `json:"low,omitempty"` // 0, as High: no range is known, as of a machine that is only described
	High    float64 `json:"high,omitempty"`
}

// predictionError is how far predictions of measured machines have been off at worst (docs/measurements/predictions.md).
const predictionError = 0.155

// Expected returns what is known of a candidate's step: of one that was tried, the median of its trials and the range
// without the fastest and the slowest tenth; of another, the prediction. measured says whether that is for a machine that
// was measured.
func (c *Candidate) Expected(measured bool) Expectation {
	switch {
	case c.Tried > 0:
		list := slices.Sorted(slices.Values(c.trials))
		if len(list) == 0 { // tried elsewhere
			return Expectation{c.Tried, 0, 0}
		}
		tenth := len(list) / 10
		return Expectation{stat.Median(list), list[tenth], list[len(list)-1-tenth]}
	case measured:
		return Expectation{c.Seconds(), c.Seconds() * (1 - predictionError), c.Seconds() * (1 + predictionError)}
	}
	return Expectation{Seconds: c.Seconds()}
}

// Text says the range, and what the model alone predicts where trials know better; "" if neither is known.
func (e Expectation) Text(model float64) string {
	text := ""
	if e.High > 0 {
		text = fmt.Sprintf(" (%.3g to %.3g s", e.Low, e.High)
		if e.Seconds != model {
			text += fmt.Sprintf(" when tried; %.4g s by the model", model)
		}
		text += ")"
	}
	return text
}

// Compare says how a measured median compares with what was expected, in words and by its difference, which ends the line:
// "(median, as expected), +3.9 %".
func (e Expectation) Compare(measured float64) string {
	r, words := measured/e.Seconds, ""
	switch {
	case r >= 2:
		words = fmt.Sprintf(", %.3g times as long", r)
	case e.High == 0:
	case measured < e.Low:
		words = ", faster than expected"
	case measured > e.High:
		words = ", slower than expected"
	default:
		words = ", as expected"
	}
	return fmt.Sprintf("(median%s), %+.1f %%", words, 100*(r-1))
}
