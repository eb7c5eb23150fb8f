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
