package compare

import (
	"math"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/policy"
)

// TestContest: where the policies of others have a plan with some settings, the search, which
// does not see their plans, has one that is no slower; here on a model of 124 million
// parameters, in memories from more than enough to too little. Settings never make a policy
// slower than as published.
func TestContest(t *testing.T) {
	testkit.Needs(t, testkit.All)
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
					t.Errorf("%+v in %d bytes: %s takes %.4f of the search's %s, tuned %+v", c, memory, s.Policy, s.Ratio, r.Label, s.Tuning)
				}
				if s.Published > 0 && s.Published < s.Seconds {
					t.Errorf("%+v in %d bytes: %s is faster as published than tuned: %+v", c, memory, s.Policy, s)
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
		if r.Policy != policy.All()[k].Name || r.Fits > 0 && !(r.Least <= r.Mean && r.Mean <= r.Most && r.Mean <= r.Published) {
			t.Errorf("%+v", r)
		}
	}
}

// TestTunedContest: where there is memory for everything, no policy has to checkpoint or offload
// needlessly, and policies that do neither are as fast as the search except for the head, whose
// logits they compute sequence by sequence; as published, they recompute a layer's forward pass.
func TestTunedContest(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	c := Contest{"gpt2", "elixir-paper-40", 1, 4, 1024}
	r, err := c.Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const layers, inputs = 12, 1 << 20 // tokens and targets are on the host, fewer than this many bytes
	for _, s := range r.Standings {
		offloads := s.Policy == "zero-2-offload" || s.Policy == "full-offload"
		if s.Tuning.Accumulation != 1 || s.Tuning.Kept != layers {
			t.Errorf("%s is tuned %+v", s.Policy, s.Tuning)
		}
		if (s.Host > inputs) != offloads || (s.Policy == "zero-3-offload") != (s.Tuning.Resident > layers) {
			t.Errorf("%s leaves %d chunks on the device and has %d bytes on the host", s.Policy, s.Tuning.Resident, s.Host)
		}
		if s.Ratio < 1 || offloads != (s.Ratio > 1.05) || s.PublishedRatio < 1.1 {
			t.Errorf("%s takes %.3f of the search's time, as published %.3f", s.Policy, s.Ratio, s.PublishedRatio)
		}
	}
}

// TestCompareContests: means are geometric, over the contests where a policy has a plan.
func TestCompareContests(t *testing.T) {
	list := Compare([]Contested{{Standings: standings(2, 1)}, {Standings: standings(8, 0)}, {Standings: standings(0.5, 0)}})
	for k, want := range []Ratios{
		{Least: 0.5, Mean: 2, Most: 8, Fits: 3, Faster: 1, Published: 4},
		{Least: 1, Mean: 1, Most: 1, Fits: 1, Published: 2},
		{},
	} {
		got := list[k]
		got.Mean, got.Published = math.Round(1e9*got.Mean)/1e9, math.Round(1e9*got.Published)/1e9
		if want.Policy = policy.All()[k].Name; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// standings are ratios of the first policies, twice as large as published; the others do not fit.
func standings(ratios ...float64) []Standing {
	list := make([]Standing, len(policy.All()))
	for i, r := range ratios {
		list[i].Ratio, list[i].PublishedRatio = r, 2*r
	}
	return list
}
