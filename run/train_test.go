package run

import (
	"errors"
	"strings"
	"testing"
)

type events []string

func (*events) Step(Metrics)        {}
func (e *events) Event(text string) { *e = append(*e, text) }

// TestUnlikePredicted: a run whose steps take much longer, or much less, than
// was predicted says so, once.
func TestUnlikePredicted(t *testing.T) {
	dir := t.TempDir()
	file := runConfig(t, dir)
	for name, seconds := range map[string]float64{"slow": 1e6, "fast": 1e-9} {
		tr, _ := openRun(t, file, "max_steps=3", "out="+dir+"/"+name)
		for range 7 { // as if so many steps had been measured
			tr.Measured = append(tr.Measured, seconds)
		}
		var said events
		check(t, errors.Join(tr.Run(t.Context(), &said), tr.Close()))
		if n := strings.Count(strings.Join(said, "\n"), "were predicted; hint:"); n != 1 {
			t.Errorf("%s: said %d times: %q", name, n, said)
		}
	}
}

// TestSurprise: steps of any length that are not as predicted are told with digits that
// show the difference.
func TestSurprise(t *testing.T) {
	for _, s := range []float64{1e-4, 0.02, 300} {
		text := surprise(2*s, s)
		_, rest, _ := strings.Cut(text, "steps take ")
		a, rest, _ := strings.Cut(rest, " s, ")
		if b, _, _ := strings.Cut(rest, " s were"); a == b || strings.Trim(b, "0.") == "" || !strings.Contains(text, "hint:") {
			t.Errorf("%v s instead of %v: %s", 2*s, s, text)
		}
		if text := surprise(1.1*s, s); text != "" {
			t.Errorf("a tenth more: %s", text)
		}
	}
}
