package search

import (
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/sim"
)

// TestBalance: compares the search's plan with the best of all combinations of residency, chunks that stay,
// cache, prefetching and recomputation, on a model that is small enough to try them all.
func TestBalance(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req := tiny(t)
	req.Pins.MicroBatch = 4
	improved := 0
	for _, c := range testkit.Sample([]struct {
		mib   int64
		ranks int
		link  float64
	}{{8, 1, 1}, {12, 1, 0.3}, {7, 2, 1}}, 1, 2) {
		req.Ranks, req.GlobalBatch = c.ranks, 4*c.ranks
		m := machine(t, c.mib<<20, c.link)
		m.Capacity[device.DiskTier] = 0
		p := newProblem(req, m)
		var best, simple *Candidate
		for _, r := range p.placements {
			if r.state == device.DiskTier || r.shard == "state" || p.hopeless(4, r, nil) {
				continue
			}
			base := choice{b: 4, group: 1, r: r, st: style{headRows: 128, chunk: 1 << 62, prefetch: 1}}
			chunks := len(plan.Layout(req.Graph, base.st.chunk))
			for residents := 0; residents <= chunks && (residents == 0 || r.state != device.DeviceTier); residents++ {
				for spare := int64(0); spare <= 2; spare++ {
					for _, name := range plan.Recomputations() {
						for cut := range req.Graph.Model.Layers + 1 {
							ch := base
							ch.residents, ch.st.spare = residents, spare
							for l := range req.Graph.Model.Layers {
								kind := "none"
								if l < cut {
									kind = name
								}
								ch.keep = append(ch.keep, plan.Recomputed(kind))
							}
							cand, err := p.evaluate(t.Context(), ch)
							check(t, err)
							if !cand.Fits {
								continue
							}
							check(t, cand.Time(m))
							if best == nil || cand.Seconds() < best.Seconds() {
								best = cand
							}
							if residents == 0 && spare == 0 && (simple == nil || cand.Seconds() < simple.Seconds()) {
								simple = cand
							}
						}
					}
				}
			}
		}
		if best == nil {
			t.Fatalf("%+v: nothing fits", c)
		}
		if simple == nil || best.Seconds() < 0.99*simple.Seconds() {
			improved++
		}
		if r := find(t, req, m); r.Best.Seconds() > 1.01*best.Seconds() {
			t.Errorf("%+v: chosen %s %.5g s, but %s takes %.5g s", c, r.Best.Label, r.Best.Seconds(), best.Label, best.Seconds())
		}
	}
	if improved == 0 {
		t.Error("in none of the cases does the division of memory matter")
	}
}

// TestBounds: no plan is faster than the bound that its residency was judged by, none that fits was called hopeless,
// and none lacks less memory than its residency at least.
func TestBounds(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req := small(t)
	for _, c := range []struct {
		ranks int
		clip  float64
		room  int64 // of the device, in MiB
		host  int64
	}{{1, 0, 14, 1 << 14}, {1, 1, 14, 1 << 14}, {1, 1, 6, 1 << 14}, {1, 1, 3, 1}, {1, 0, 3, 1}, {2, 0, 14, 1 << 14}, {2, 1, 14, 1 << 14}, {2, 1, 2, 1}} {
		req.Ranks, req.GlobalBatch, req.Options.Clip = c.ranks, 8*c.ranks, c.clip
		m := machine(t, c.room<<20, 1)
		m.Capacity[device.HostTier] = c.host << 20
		p := newProblem(req, m)
		lacking := 0
		levels := p.ladders(choice{b: 4, group: 1})[0]
		fitted := 0
		for _, r := range p.placements {
			hopeless := p.hopeless(4, r, nil)
			for _, n := range [][3]int{{0, 0, 1}, {2, 0, 1}, {4, 0, 1}, {0, updateParts / 2, 1}, {2, updateParts / 4, 1}, {0, updateParts, 1}, {0, 0, 2}, {2, 0, 2}, {0, 0, 3}} {
				residents, level := n[0], len(levels)/2
				if n[2] > 1 {
					level = len(levels) - 1
				}
				ch := choice{b: 4, group: min(n[2], 2), deferred: n[2] == 3 && r.state != device.DeviceTier && c.clip > 0, r: r, st: style{headRows: 64, chunk: 1 << 62, prefetch: 1}, keep: levels[level], residents: residents, streamed: n[1]}
				c, err := p.evaluate(t.Context(), ch)
				check(t, err)
				if lack, least := p.lack(c), p.leastLack(r); residents == 0 && float64(lack) < least {
					t.Errorf("%s lacks %d bytes, the bound is %.0f", c.Label, lack, least)
				} else if least > 0 {
					lacking++
				}
				if !c.Fits {
					continue
				}
				fitted++
				check(t, c.Time(m))
				if hopeless && residents == 0 {
					t.Errorf("%s fits, but was called hopeless", c.Label)
				}
				if least := p.leastArithmetic(4) + p.leastUpdate(r); c.Seconds() < least {
					t.Errorf("%s takes %.6g s, the bound is %.6g", c.Label, c.Seconds(), least)
				}
			}
		}
		if fitted < 5 && c.room > 13 {
			t.Errorf("only %d plans fit", fitted)
		}
		if lacking == 0 && c.host == 1 {
			t.Error("nothing is known to lack memory")
		}
	}
}

// TestTiredSearchImproves: an enumeration that has used up its effort leaves some for improving what it found.
func TestTiredSearchImproves(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	p := newProblem(small(t), machine(t, 12<<20, 1))
	enumerated := 0
	p.told.progress = func(text string) {
		switch {
		case strings.Contains(text, ", group "):
			p.told.lowered = p.told.allowed + 1
		case enumerated == 0 && strings.Contains(text, "dividing the memory"):
			enumerated = p.told.evaluated
		}
	}
	_, err := planUniform(t.Context(), p, nil)
	check(t, err)
	if enumerated == 0 || p.told.evaluated == enumerated {
		t.Errorf("%d plans enumerated, %d in all: nothing was improved", enumerated, p.told.evaluated)
	}
}

// TestHeads: the best number of tokens whose logits are computed at a time is found even where the next size is
// slower than the first and only the one after that is faster.
func TestHeads(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req, m := small(t), machine(t, 200<<20, 1)
	req.Pins.MicroBatch = req.GlobalBatch
	const best = 256 // of 1024 tokens
	usual := m.Cost
	m.Cost = sim.CostFunc(func(c *device.Call) float64 {
		switch {
		case c.Op != graph.CrossEntropy:
			return usual.Cost(c)
		case c.Args[0].Rows == best:
			return 0.1
		}
		return 1
	})
	if rows := find(t, req, m).Best.Plan.HeadRows; rows != best {
		t.Errorf("logits of %d tokens at once, not %d", rows, best)
	}
}
