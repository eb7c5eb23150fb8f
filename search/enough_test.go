package search

import (
	"errors"
	"strings"
	"testing"
	"time"

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

// TestTimeLeft: what a search may still do, at the rate of what it has done, is how long it takes at most; nothing is said
// within the first second.
func TestTimeLeft(t *testing.T) {
	r := &recorder{lowered: 300, pipelined: 100}
	r.begin(500, 300)
	r.lowered += 100
	for since, want := range map[time.Duration]string{10 * time.Second: "at most 14s more, ", 900 * time.Millisecond: ""} {
		if got := r.left(since); got != want {
			t.Errorf("after %v: %q, want %q", since, got, want)
		}
	}
	r.lowered = 5000
	if got := r.left(time.Minute); got != "at most 4s more, " {
		t.Errorf("later stages alone: %q", got)
	}
}
