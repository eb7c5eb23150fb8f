package search

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/schedule"
)

// Estimated costs of parts of a step, before lowering. They serve bounds and the
// order in which pipelines are tried; programs give the verdict.

// costs are the estimated costs of one micro-batch.
type costs struct {
	segments []schedule.Times
	message  float64 // seconds to the next stage
	// For one layer and each recomputation policy, from least work to least memory: seconds of recomputed work,
	// and bytes kept for the backward pass.
	again []float64
	kept  []int64
}

// recomputations returns the recomputation policies that pipelines choose from, from least work to least memory. With
// slices, only policies that keep what later slices read are valid.
func (p *problem) recomputations(v variant) (list []plan.Retention) {
	for _, name := range plan.Recomputations() {
		if pin := p.req.Pins.Recompute; (pin == "" || pin == name) && (v.slices <= 1 || slices.Contains(plan.SlicesTake(p.graph), name)) {
			list = append(list, plan.Recomputed(name))
		}
	}
	return list
}

// estimates are the costs of micro-batches, by their number of sequences, computed on demand. They belong to one
// stage: prices do not change while it runs.
type estimates struct {
	p     *problem
	known map[int]*costs
}

func newEstimates(p *problem) *estimates { return &estimates{p, map[int]*costs{}} }

// of returns the estimates for micro-batches of b sequences.
func (e *estimates) of(b int) *costs {
	if e.known[b] == nil {
		e.known[b] = e.p.estimate(b)
	}
	return e.known[b]
}

// estimate estimates a micro-batch of b sequences. The head's forward pass runs within
// its backward pass (see lower.Lower), and none of that is deferred.
func (p *problem) estimate(b int) *costs {
	g, rows := p.graph, b*p.graph.Seq
	c := &costs{}
	for i := range g.Segments {
		seg := &g.Segments[i]
		var t schedule.Times
		for k := range seg.Forward {
			t.F += p.prices.node(&seg.Forward[k], rows)
		}
		for k := range seg.Backward {
			n := &seg.Backward[k]
			if sec := p.prices.node(n, rows); g.WeightGradient(n) {
				t.W += sec
			} else {
				t.B += sec
			}
		}
		if i == g.Head() {
			t = schedule.Times{B: t.F + t.B + t.W}
		}
		c.segments = append(c.segments, t)
	}
	typical := g.Model.Layers - 1 // lower layers may be frozen
	saved := plan.Saved(g, typical, rows)
	for _, r := range p.recomputations(variant{}) {
		var sec float64
		for _, n := range r.RepeatedNodes(&g.Segments[1+typical]) {
			sec += p.prices.node(n, rows)
		}
		var kept int64
		for a, bytes := range saved {
			if r[a] == plan.Kept {
				kept += bytes
			}
		}
		c.again, c.kept = append(c.again, sec), append(c.kept, kept)
	}
	c.message = p.prices.toNextStage(b)
	return c
}

// forPipeline returns the costs where ranks are on the hosts that suit pipelines of a depth.
func (e *estimates) forPipeline(b, depth int) *costs {
	c := *e.of(b)
	c.message = e.p.prices.dealt(depth).toNextStage(b)
	return &c
}

// leastBytes returns a lower bound on the bytes per tier of n trained and some frozen
// elements that a group of ranks shards.
func (p *problem) leastBytes(n, frozen int64, r residency, group int) (need [device.NumTiers]int64) {
	share := func(bytes int64, from string) int64 { // per rank, for what is sharded from this level on
		if plan.ShardLevel(r.shard) >= plan.ShardLevel(from) {
			return bytes / int64(group)
		}
		return bytes
	}
	need[r.weights] += share((n+frozen)*p.graph.Narrowest().Size(), "weights")
	if r.state == device.DeviceTier {
		need[r.grads] += share(4*n, "grads")
	}
	need[r.state] += share(plan.StateBytes(p.req.Optimizer, p.req.State, p.graph.Narrowest())*n, "state")
	return need
}
