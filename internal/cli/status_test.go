package cli

import (
	"strings"
	"testing"
)

// TestActivities: without a terminal each activity is reported once per part, not once for
// everything that it works on.
func TestActivities(t *testing.T) {
	var b strings.Builder
	s := NewStatus(&b)
	for range 2 {
		for _, text := range []string{"timing the operators of: a", "timing the operators of: b", "plans of other systems", "timing the operators of: c"} {
			s.Say(text)
		}
		s.Next()
	}
	part := "timing the operators of: a\nplans of other systems\n"
	if b.String() != part+part {
		t.Errorf("said %q", b.String())
	}
}

// TestProgressInFiles: without a terminal, long work says how far it is from time to time, and short work only that it began.
func TestProgressInFiles(t *testing.T) {
	var b strings.Builder
	s := NewStatus(&b)
	for done := range int64(100) {
		if done == 42 || done == 57 {
			s.when = s.when.Add(-saidEvery)
		}
		s.Progress("reading the corpus", done, 100)
	}
	if want := "reading the corpus\nreading the corpus: 42 %\nreading the corpus: 57 %\n"; b.String() != want {
		t.Errorf("said %q, want %q", b.String(), want)
	}
}
