package run

import (
	"math"
	"testing"
)

// TestNumber: the text of a perplexity is short, whatever the loss.
func TestNumber(t *testing.T) {
	for loss, want := range map[float64]string{0: "1.0", 4.0271: "56.1", math.Log(999999): "999999.0", math.Log(1.234e6): "1.23e+06", 573: "7.09e+248", 1e4: "+Inf", math.NaN(): "NaN"} {
		if got := Number(math.Exp(loss), 1); got != want {
			t.Errorf("%v: %s, want %s", loss, got, want)
		}
	}
}
