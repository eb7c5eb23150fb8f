package search

import (
	"math"
	"strings"
	"testing"
)

// TestExpected: trials count more than the model, whose prediction has the range in which predictions have been; a described
// machine has none. Words and signs say faster and slower the right way round. Other work that takes half of the cores
// doubles what was timed without it, and the range has room for its end and for as much again.
func TestExpected(t *testing.T) {
	tried := &Candidate{seconds: 0.478, Tried: 1.2, trials: []float64{1.3, 1.1, 1.2, 1.25, 1.15, 5, 1.18, 1.22, 0.2, 1.2}}
	quiet := &Hour{1, 1}
	e := tried.Expected(quiet)
	if e != (Expectation{1.2, true, 1.1, 1.3}) || !strings.Contains(e.Text(0.478), "1.1 to 1.3 s when tried; 0.478 s by the model") {
		t.Errorf("%+v:%s", e, e.Text(0.478))
	}
	for measured, want := range map[float64]string{1.24: "(median, as expected), +3.3 %", 3: "(median, 2.5 times as long), +150.0 %", 1.5: "(median, slower than expected), +25.0 %", 0.6: "(median, faster than expected), -50.0 %"} {
		if got := e.Compare(measured); got != want {
			t.Errorf("%v s are %q, want %q", measured, got, want)
		}
	}
	model := &Candidate{seconds: 1}
	if e := model.Expected(quiet); e.Low >= 1 || e.High <= 1 || strings.Contains(e.Text(1), "tried") {
		t.Errorf("untried: %+v:%s", e, e.Text(1))
	}
	if e := model.Expected(nil); e.High != 0 || e.Text(1) != "" {
		t.Errorf("described: %+v:%s", e, e.Text(1))
	}
	for hour, want := range map[Hour][3]float64{
		{1, 0.5}:   {2, 1 - predictionError, 4 * (1 + predictionError)},         // timed before the other work began
		{0.5, 0.5}: {1, (1 - predictionError) / 2, 2 * (1 + predictionError)},   // timed beside it
		{0.5, 1}:   {0.5, (1 - predictionError) / 2, (1 + predictionError) / 2}, // it has ended since
	} {
		if e := model.Expected(&hour); e.Seconds != want[0] || math.Abs(e.Low/want[1]-1) > 1e-9 || math.Abs(e.High/want[2]-1) > 1e-9 {
			t.Errorf("%+v: %+v, want %v", hour, e, want)
		}
	}
	if e := tried.Expected(&Hour{0.5, 0.5}); e.Seconds != 1.2 || e.Low != 0.55 || math.Abs(e.High-2.6) > 1e-9 {
		t.Errorf("tried beside other work: %+v", e)
	}
}
