package search

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/internal/stat"
)

// Expectation is what is known of a step's seconds before the run: the best single number, and the range it lies in.
type Expectation struct {
	Seconds float64 `json:"seconds"`
	Tried   bool    `json:"tried,omitempty"` // what trials on the machine took
	Low     float64 `json:"low,omitempty"`   // 0, as High: no range is known, as of a machine that is only described
	High    float64 `json:"high,omitempty"`
}

// predictionError is how far predictions of measured machines have been off at worst (docs/measurements/predictions.md).
const predictionError = 0.155

// Hour is what other work leaves of a machine that was measured: the pace of its cores, as a share of what they can do, when
// operators were timed, and now.
type Hour struct{ Timed, Now float64 }

// Expected returns what is known of a candidate's step: of one that was tried, the median of its trials and the range
// without the fastest and the slowest tenth; of another, the prediction. Other work may end, or slow steps down as much again:
// that widens the range. hour is nil for a machine that was not measured.
func (c *Candidate) Expected(hour *Hour) Expectation {
	switch {
	case c.Tried > 0 && len(c.trials) > 0 && hour != nil:
		list := slices.Sorted(slices.Values(c.trials))
		tenth := len(list) / 10
		return Expectation{stat.Median(list), true, list[tenth] * hour.Now, list[len(list)-1-tenth] * hour.worse()}
	case c.Tried > 0: // elsewhere
		return Expectation{Seconds: c.Tried, Tried: true}
	case hour != nil:
		alone := c.Seconds() * hour.Timed
		return Expectation{alone / hour.Now, false, alone * (1 - predictionError), alone / hour.Now * hour.worse() * (1 + predictionError)}
	}
	return Expectation{Seconds: c.Seconds()}
}

// worse returns how many times as long steps take if other work comes to slow them down as much again as now.
func (h *Hour) worse() float64 { return 1 / h.Now }

// Text says the range, and what the model alone predicts where trials or the hour's pace tell more; "" if neither is known.
func (e Expectation) Text(model float64) string {
	text := ""
	if e.High > 0 {
		text = fmt.Sprintf(" (%.3g to %.3g s", e.Low, e.High)
		if e.Tried {
			text += " when tried"
		}
		if e.Seconds != model {
			text += fmt.Sprintf("; %.4g s by the model", model)
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
	case e.High > 0 && measured >= e.Low && measured <= e.High:
		words = ", as expected"
	case r >= 2:
		words = fmt.Sprintf(", %.3g times as long", r)
	case e.High == 0:
	case measured < e.Low:
		words = ", faster than expected"
	default:
		words = ", slower than expected"
	}
	return fmt.Sprintf("(median%s), %+.1f %%", words, 100*(r-1))
}
