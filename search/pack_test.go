package search

import (
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/verify"
)

// TestPack: the arenas of the plan that will run are nowhere higher than the search's, and somewhere lower; its
// step is longer by at most a thousandth.
func TestPack(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	lower := 0
	for _, c := range testkit.Sample([]struct {
		mib   float64
		micro int
	}{{7, 2}, {12, 1}, {5.5, 1}, {8, 1}, {12, 0}}, 1, 2) {
		budget, req := int64(c.mib*(1<<20)), tiny(t)
		if req.Pins.MicroBatch = c.micro; c.micro > 0 { // heuristics seldom miss the bound
			req.Pins.Recompute = "attention"
		}
		p := newProblem(req, machine(t, budget, 1))
		found, err := planUniform(t.Context(), p, nil)
		check(t, err)
		if len(found) == 0 {
			continue
		}
		found, err = lowerAllRanks(t.Context(), p, found)
		check(t, err)
		packed, err := packFastest(t.Context(), p, found)
		check(t, err)
		before, after := found[0], packed[0]
		if after.seconds > 1.001*before.seconds {
			t.Errorf("%d bytes: %v s, %v s before", budget, after.seconds, before.seconds)
		}
		for r, p := range after.Ranks {
			check(t, verify.Verify(p))
			for tier, h := range p.Height {
				if was := before.Ranks[r].Height[tier]; h > was {
					t.Errorf("%d bytes, tier %d: %d bytes, %d before", budget, tier, h, was)
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

// TestLowerToFit: a plan whose lower bound is the capacity fits, though the heuristics' packing is higher.
func TestLowerToFit(t *testing.T) {
	req, m := tiny(t), machine(t, 1<<30, 1)
	out, part := plan.Fate{Tier: device.HostTier, Share: 1}, plan.Fate{Tier: device.HostTier, Share: 0.5}
	ch := choice{b: 4, group: 1, st: style{headRows: 64, chunk: 1 << 62, prefetch: 2}, keep: []plan.Retention{{plan.Kept, plan.Kept, plan.Remade, part}, {out, out, out, part}},
		r: residency{weights: device.HostTier, grads: device.HostTier, state: device.HostTier}}
	pl, _, _ := newProblem(req, m).plan(ch)
	opt := req.Options
	opt.Capacity = program.NoLimits
	easy, err := lower.Lower(t.Context(), req.Graph, pl, opt)
	check(t, err)
	opt.Capacity[device.DeviceTier] = easy.Bound[device.DeviceTier]
	p, err := lowerToFit(t.Context(), req.Graph, pl, opt)
	check(t, err)
	if easy.Height == easy.Bound || !p.Fits() {
		t.Errorf("%v bytes at most, heuristics need %v, and all that was tried %v", opt.Capacity, easy.Height, p.Height)
	}
}
