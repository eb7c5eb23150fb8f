package compare

import (
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestSharedContest: where policies whose ranks share sequences or matrices have a plan, the search over all degrees, which does not see theirs,
// has one that is at most 2 % slower.
func TestSharedContest(t *testing.T) {
	testkit.Needs(t, testkit.All)
	for _, c := range []Contest{{"llama-3.2-1b", "a100-40", 2, 1, 2048}, {"qwen2.5-0.5b", "elixir-paper-40", 4, 1, 4096}} {
		r, err := c.HoldShared(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range r.Standings {
			if s.Seconds > 0 && s.Ratio < 0.98 {
				t.Errorf("%+v: %s with degrees %+v takes %.4f of the search's %s with %+v", c, s.Policy, s.Degrees, s.Ratio, r.Label, r.Degrees)
			}
		}
	}
}
