package search

import (
	"errors"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestEnough: a search that is told that the user has had enough ends with the plan that it then has, whole and on all
// ranks, or goes on to the first one; that nothing fits is seen all the same.
func TestEnough(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req, m := small(t), machine(t, 12<<20, 1)
	whole := find(t, req, m)
	for _, when := range []string{"", "so far"} { // at once; when there is a plan
		enough, said := make(chan struct{}), false
		req.Enough = enough
		r, err := Search(t.Context(), req, m, func(text string) {
			if !said && strings.Contains(text, when) {
				said = true
				close(enough)
			}
		})
		check(t, err)
		switch {
		case !r.Cut || whole.Cut:
			t.Errorf("%q: cut short %v, without interruption %v", when, r.Cut, whole.Cut)
		case r.Evaluated >= whole.Evaluated/2:
			t.Errorf("%q: %d plans were looked at, %d without interruption", when, r.Evaluated, whole.Evaluated)
		case !r.Best.Fits || len(r.Best.Ranks) != 1 || r.Best.missing > 0 || r.Best.Seconds() < whole.Best.Seconds():
			t.Errorf("%q: %+v", when, r.Best)
		}
		if _, err := Search(t.Context(), req, machine(t, 1<<16, 1), nil); !errors.Is(err, ErrDoesNotFit) {
			t.Errorf("%q: %v", when, err)
		}
	}
}
