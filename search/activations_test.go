package search

import (
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
)

// long is a model whose activations at 2048 tokens are many times its
// parameters.
func long(t *testing.T) *Request {
	t.Helper()
	m, err := family.Known("gpt2")
	check(t, err)
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions = 6, 128, 4, 4, 32, 512, 512, 2048
	g, err := graph.Build(m, 2048, graph.F32)
	check(t, err)
	return &Request{Graph: g, GlobalBatch: 1, Options: lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1}}
}

// TestActivationsBeatPolicies: what the search decides is never slower, on the same simulator and in the same
// memory, than recomputing everything, swapping everything, MEMO's policy, or the best plan that only
// recomputes.
func TestActivationsBeatPolicies(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	better := 0
	for _, budget := range testkit.Sample([]int64{60 << 20, 40 << 20}, 1, 1) {
		for _, link := range testkit.Sample([]float64{0.02, 0.2, 1}, 1, 2) {
			m := machine(t, budget, link)
			req := long(t)
			best := find(t, req, m).Best.Seconds()
			p := newProblem(req, m)
			arms := map[string][]plan.Retention{
				"full recomputation": p.keepLast(plan.Recomputed("full"), 0),
				"attention kept":     p.keepLast(plan.Recomputed("attention"), 0),
				"full swap":          p.keepLast(plan.SwapOf(device.HostTier, 1), MemoKept),
				"memo":               p.keepLast(p.memoPolicy(device.HostTier, choice{b: 1, group: 1}), MemoKept),
			}
			for name, keep := range arms {
				c, err := p.evaluate(t.Context(), choice{b: 1, group: 1, r: residencies[0], st: p.styles(fastestPlan, 1, residencies[0])[0], keep: keep})
				check(t, err)
				if !c.Fits {
					continue
				}
				check(t, c.Time(m))
				if best > c.Seconds()*(1+1e-9) {
					t.Errorf("%d MiB, link x %v: chosen %.6g s, %s %.6g s", budget>>20, link, best, name, c.Seconds())
				}
				if best < 0.99*c.Seconds() {
					better++
				}
			}
			paper := *req
			paper.Pins.Policy = MemoRule
			if r := find(t, &paper, m); best > r.Best.Seconds()*(1+1e-9) {
				t.Errorf("%d MiB, link x %v: chosen %.6g s, %s %.6g s", budget>>20, link, best, MemoRule, r.Best.Seconds())
			}
		}
	}
	if better < testkit.Count(4, 4, 10) {
		t.Errorf("only %d arms are beaten by a percent", better)
	}
}

// TestMemoShare: MEMO's closed form, section 4.1, with numbers that can be
// checked by hand: the host alone bounds it, then the link.
func TestMemoShare(t *testing.T) {
	req := long(t)
	m := machine(t, 1<<30, 1e6)
	p := newProblem(req, m)
	saved := plan.Saved(req.Graph, 0, req.Graph.Seq)
	whole, rest := saved[plan.InputAct]+saved[plan.AttentionAct], saved[plan.LinearAct]+saved[plan.LightAct]
	for _, share := range []float64{0, 0.4667, 1} {
		m.Capacity[device.HostTier] = 4 * (whole + int64(share*float64(rest)))
		if got := p.memoShare(1, 1, plan.LinearAct, plan.LightAct); got < share-1e-6 || got > share+1e-6 {
			t.Errorf("the host holds a share of %v, got %v", share, got)
		}
	}
	p = newProblem(req, machine(t, 1<<30, 1e-6))
	if got := p.memoShare(1, 1, plan.LinearAct, plan.LightAct); got != 0 {
		t.Errorf("nothing hides behind the link, got %v", got)
	}
}

// TestFits: Fits agrees with Search, and so does FitsFrugally. Where nothing fits, Fits sees that by hardly more work: by
// frugal plans.
func TestFits(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req := long(t)
	for _, mib := range testkit.Sample([]int64{20, 26, 32, 38}, 1, 2) {
		m := machine(t, mib<<20, 1)
		_, err := Search(t.Context(), req, m, nil)
		fits := err == nil
		if got := Fits(t.Context(), req, m) == nil; got != fits {
			t.Errorf("%d MiB: fits %v, search says %v", mib, got, fits)
		}
		lowered := map[aim]int{}
		for _, of := range []aim{anyPlan, anyFrugal} { // what Fits and FitsFrugally ask
			p := newProblem(req, m)
			if found, err := planExists(t.Context(), p, of); err != nil || found != fits {
				t.Errorf("%d MiB: fits %v, a plan exists %v %v", mib, fits, found, err)
			}
			lowered[of] = p.told.lowered
		}
		if !fits && lowered[anyPlan] > 2*lowered[anyFrugal] {
			t.Errorf("%d MiB: %d instructions to see that nothing fits, %d with frugal plans only", mib, lowered[anyPlan], lowered[anyFrugal])
		}
	}
}

// TestPinnedActivations: shares that the user set are kept, layer by layer.
func TestPinnedActivations(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req := long(t)
	r := plan.SwapOf(device.HostTier, 0.25)
	req.Pins.Activations = map[int]plan.Retention{0: r, 5: r}
	keep := find(t, req, machine(t, 1<<30, 1)).Best.Plan.Activations
	want := slices.Repeat([]plan.Retention{plan.Recomputed("none")}, 6)
	want[0], want[5] = r, r
	if !slices.Equal(keep, want) {
		t.Errorf("got %v", keep)
	}
}
