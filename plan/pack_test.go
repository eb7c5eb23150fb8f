package plan

import (
	"testing"

	"github.com/athanor-llm/athanor/program"
)

// TestPack: the plan that will run gets addresses nowhere higher than those that
// the search made do with, somewhere lower ones, and its step is not longer by
// more than a thousandth.
func TestPack(t *testing.T) {
	lower := 0
	for _, budget := range []int64{6, 7, 16} {
		s := newSearch(t.Context(), small(t), machine(t, budget<<20, 1))
		check(t, s.alike())
		if len(s.found) == 0 {
			continue
		}
		check(t, s.complete())
		before := s.found[0]
		check(t, s.pack())
		after := s.found[0]
		if after.seconds > 1.001*before.seconds {
			t.Errorf("%d MiB: %v s, %v s before", budget, after.seconds, before.seconds)
		}
		for r, p := range after.Ranks {
			check(t, program.Verify(p))
			for tier, h := range p.Height {
				if was := before.Ranks[r].Height[tier]; h > was {
					t.Errorf("%d MiB, tier %d: %d bytes, %d before", budget, tier, h, was)
				} else if h < was {
					lower++
				}
			}
		}
	}
	if lower == 0 {
		t.Error("no plan was packed lower")
	}
}
