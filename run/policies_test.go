package run

import (
	"math"
	"testing"

	"github.com/athanor-llm/athanor/policy"
)

// TestContest: where the policies of others have a plan, the search has one
// that is no slower; here on a model of 124 million parameters, in memories
// from more than enough to too little.
func TestContest(t *testing.T) {
	var list []Contested
	for _, c := range Contests([]string{"gpt2"}, []string{"elixir-paper-40"}, []int{1, 4}, []int{2}, 256) {
		for _, memory := range []int64{4 << 30, 900 << 20, 500 << 20, 10 << 20} {
			r, err := c.hold(t.Context(), memory)
			if err != nil {
				t.Fatal(err)
			}
			fits := 0
			for _, s := range r.Standings {
				if s.Seconds == 0 {
					if s.Why == "" {
						t.Errorf("%+v does not say why", s)
					}
					continue
				}
				fits++
				if s.Ratio < 1 {
					t.Errorf("%+v in %d bytes: %s takes %.4f of the search's %s", c, memory, s.Policy, s.Ratio, r.Label)
				}
			}
			if fits > 0 && r.Seconds == 0 || memory == 10<<20 && r.Seconds > 0 {
				t.Errorf("%+v in %d bytes: %d policies have a plan, the search takes %v s", c, memory, fits, r.Seconds)
			}
			list = append(list, *r)
		}
	}
	ratios := Compare(list)
	for k, r := range ratios {
		if r.Policy != policy.All()[k].Name || r.Fits > 0 && !(r.Least <= r.Mean && r.Mean <= r.Most) {
			t.Errorf("%+v", r)
		}
	}
	two := Compare([]Contested{{Standings: standings(2, 1)}, {Standings: standings(8, 0)}})
	if r := two[0]; r.Least != 2 || r.Most != 8 || math.Abs(r.Mean-4) > 1e-12 || r.Fits != 2 || two[1].Fits != 1 || two[2].Fits != 0 {
		t.Errorf("%+v", two[:3])
	}
}

// standings are ratios of the first policies; the others do not fit.
func standings(ratios ...float64) []Standing {
	list := make([]Standing, len(policy.All()))
	for i, r := range ratios {
		list[i].Ratio = r
	}
	return list
}
