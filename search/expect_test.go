package search

import (
	"strings"
	"testing"
)

// TestExpected: trials count more than the model, whose prediction has the range in which predictions have been; a described
// machine has none. Words and signs say faster and slower the right way round.
func TestExpected(t *testing.T) {
	tried := &Candidate{seconds: 0.478, Tried: 1.2, trials: []float64{1.3, 1.1, 1.2, 1.25, 1.15, 5, 1.18, 1.22, 0.2, 1.2}}
	e := tried.Expected(true)
	if e != (Expectation{1.2, 1.1, 1.3}) || !strings.Contains(e.Text(0.478), "1.1 to 1.3 s when tried; 0.478 s by the model") {
		t.Errorf("%+v:%s", e, e.Text(0.478))
	}
	for measured, want := range map[float64]string{1.24: "(median, as expected), +3.3 %", 3: "(median, 2.5 times as long), +150.0 %", 1.5: "(median, slower than expected), +25.0 %", 0.6: "(median, faster than expected), -50.0 %"} {
		if got := e.Compare(measured); got != want {
			t.Errorf("%v s are %q, want %q", measured, got, want)
		}
	}
	model := &Candidate{seconds: 1}
	if e := model.Expected(true); e.Low >= 1 || e.High <= 1 || strings.Contains(e.Text(1), "tried") {
		t.Errorf("untried: %+v:%s", e, e.Text(1))
	}
	if e := model.Expected(false); e.High != 0 || e.Text(1) != "" {
		t.Errorf("described: %+v:%s", e, e.Text(1))
	}
}
