package search

import (
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestPrefetchTwins: a candidate has twins that fit, polishing them makes no shortlist
// slower, and there are none where the distance is pinned.
func TestPrefetchTwins(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req, m := small(t), machine(t, 12<<20, 0.3)
	p := newProblem(req, m)
	found, err := planUniform(t.Context(), p, nil)
	check(t, err)
	pinned := *req
	twins := 0
	for _, c := range found.ofKinds(mostKinds) {
		for _, by := range []int{1, -1} {
			p.told.begin(toImprove, 0)
			twin, err := prefetchTwin(t.Context(), p, c, by)
			check(t, err)
			pinned.Pins.Prefetch = c.Plan.Prefetch
			none, err := prefetchTwin(t.Context(), newProblem(&pinned, m), c, by)
			check(t, err)
			if none != nil {
				t.Errorf("%s: prefetches %d units, pinned to %d", c.Label, none.Plan.Prefetch, c.Plan.Prefetch)
			}
			if twin == nil {
				continue
			}
			twins++
			if !twin.Fits {
				t.Errorf("%s: does not fit", twin.Label)
			}
		}
		p.told.begin(toImprove, 0)
		after, err := polishTwins(t.Context(), p, found, []*Candidate{c})
		check(t, err)
		if after[0].Seconds() > found[0].Seconds() {
			t.Errorf("%s: %v s before, %v after its twins", c.Label, found[0].Seconds(), after[0].Seconds())
		}
	}
	if twins == 0 {
		t.Error("no candidate has a twin")
	}
}
