package search

import (
	"context"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
)

// TestLeastNeed: no program needs less of any tier than its choice is said to need at least, and this is most of what it
// needs of the host and of the disk.
func TestLeastNeed(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	rng := testkit.Rand(t)
	var least, real [device.NumTiers]int64
	for range testkit.Count(30, 150, 3000) {
		req := question(t, rng)
		req.Pins = Pins{}
		req.GlobalBatch = 4 * req.Ranks
		p := newProblem(req, machine(t, 1<<34, 1))
		sizes := p.microBatches()
		b := sizes[rng.IntN(len(sizes))]
		groups := p.groups(b)
		ch := choice{b: b, group: groups[rng.IntN(len(groups))], r: p.placements[rng.IntN(len(p.placements))], residents: rng.IntN(4), deferred: req.Options.Clip > 0 && rng.IntN(4) == 0}
		ladders := p.ladders(ch)
		l := ladders[rng.IntN(len(ladders))]
		ch.keep = l[rng.IntN(len(l))]
		styles := p.styles(fastestPlan, b, ch.r)
		ch.st = styles[rng.IntN(len(styles))]
		if rng.IntN(2) == 0 {
			ch.st.spare, ch.st.prefetch = int64(rng.IntN(4)), 1+rng.IntN(3)
		}
		if rng.IntN(2) == 0 {
			ch.keep = make([]plan.Retention, req.Graph.Model.Layers)
			for i := range ch.keep {
				tier := []device.Tier{device.HostTier, device.DiskTier}[rng.IntN(2)]
				ch.keep[i] = plan.Retention{{Tier: tier, Share: 1}, plan.Remade, {Tier: tier, Share: float64(1+rng.IntN(16)) / 16}, plan.Kept}
			}
		}
		ch.short = shortens(p.batch/b, ch.group) && rng.IntN(2) == 0
		c, err := p.evaluate(context.Background(), ch)
		check(t, err)
		pl, _, _ := p.plan(ch)
		need := p.needs.least(pl)
		for tier, n := range need {
			if have := c.Program.Bound[tier]; n > have {
				t.Errorf("%v: %s, group %d, deferred %v, short %v, clip %v, %s, %v: at least %d bytes of the %v, its program %d", req.Graph.DType, c.Label, ch.group, ch.deferred, ch.short, req.Options.Clip, ch.r.label, ch.keep, n, device.Tier(tier), have)
			}
			least[tier] += n
			real[tier] += c.Program.Bound[tier]
		}
	}
	t.Logf("at least %v of %v", least, real)
}
