package search

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/sim"
)

// joined is one of four ranks' share of a machine with RTX 4090s and the given bandwidth between ranks.
func joined(t *testing.T, peers float64) *Machine {
	t.Helper()
	h, err := hardware.KnownRank("rtx4090", 4)
	check(t, err)
	l := h.Link(device.DeviceTier, device.DeviceTier)
	l.Bandwidth, l.Latency = peers, 1e-7
	for i := range h.Engines { // otherwise launches would dominate such small models
		h.Engines[i].Overhead = 0
	}
	return &Machine{Capacity: [device.NumTiers]int64{1 << 30, 1 << 34, 0}, Cost: sim.CostFunc(h.Cost)}
}

// TestLinkDecides: with a slow link between ranks a pipeline wins, since it sends the activations of a few
// micro-batches instead of all gradients; with a fast one, data parallelism wins, which has no bubble.
func TestLinkDecides(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req := small(t)
	req.Ranks, req.GlobalBatch = 4, 16
	for _, c := range []struct {
		peers    float64
		pipeline bool
	}{{2e8, true}, {1e12, false}} {
		m := joined(t, c.peers)
		best := find(t, req, m).Best
		if got := best.Plan.Pipeline != nil; got != c.pipeline {
			t.Errorf("at %g bytes/s: %s", c.peers, best.Label)
		}
		for _, pins := range testkit.Sample([]Pins{{Pipeline: 1}, {Pipeline: 4, Schedule: "1f1b"}, {Pipeline: 2, Schedule: "zb-h1"}, {Pipeline: 2, Schedule: "zb-v"}}, 1, 2) {
			pinned := *req
			pinned.Pins = pins
			rival := find(t, &pinned, m).Best
			if rival.Seconds() < best.Seconds()*(1-1e-9) {
				t.Errorf("at %g bytes/s: %s takes %.4g s, pinned %s %.4g s", c.peers, best.Label, best.Seconds(), rival.Label, rival.Seconds())
			}
			if s := rival.Plan.Pipeline; s != nil && (s.Schedule != pins.Schedule || s.Ranks != pins.Pipeline) {
				t.Errorf("%+v became %+v", pins, s)
			}
		}
	}
}

// TestPipelinePins: impossible pipelines are refused.
func TestPipelinePins(t *testing.T) {
	req := small(t)
	req.Ranks, req.GlobalBatch = 4, 8
	for _, p := range []Pins{{Pipeline: 3}, {Schedule: "dualpipe", Pipeline: 4, MicroBatch: 8}} {
		if PossiblePipeline(&p, req.Ranks, req.GlobalBatch) == nil {
			t.Errorf("%+v is said to be possible", p)
		}
	}
	odd := *req.Graph.Model
	odd.MaxPositions = 33
	g, err := graph.Build(&odd, 33, graph.BF16) // its micro-batches have at least two sequences
	check(t, err)
	for _, g := range []*graph.Graph{req.Graph, g} {
		m, r := joined(t, 1e10), *req
		r.Graph, r.Pins.Schedule = g, "1f1b"
		m.Capacity = [device.NumTiers]int64{1 << 20, 1 << 20, 0}
		var misfit *Misfit
		if _, err := Search(t.Context(), &r, m, nil); !errors.As(err, &misfit) || misfit.Need <= misfit.Have {
			t.Fatalf("without memory: %v", err)
		}
		for _, p := range misfit.Frugal.Programs {
			for tier, h := range p.Height {
				m.Capacity[tier] = max(m.Capacity[tier], h)
			}
		}
		if _, err := Search(t.Context(), &r, m, nil); err != nil {
			t.Errorf("with the memory that is said to do: %v", err)
		}
	}
}

// TestSlices: where there are fewer sequences than ranks, slicing sequences shortens the bubble; a pinned
// number of slices is kept, otherwise the fastest is found.
func TestSlices(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	m, err := family.Known("gpt2")
	check(t, err)
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward, m.Vocab, m.MaxPositions = 6, 256, 4, 4, 64, 1024, 512, 1024
	g, err := graph.Build(m, 1024, graph.F32)
	check(t, err)
	req := &Request{Graph: g, GlobalBatch: 1, Ranks: 4, Options: lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1}}
	on := joined(t, 1e9)
	req.Pins = Pins{Pipeline: 4, Schedule: "seq1f1b"}
	best := find(t, req, on).Best
	req.Pins = Pins{Pipeline: 4, Schedule: "1f1b"}
	if whole := find(t, req, on).Best; best.Seconds() > 0.9*whole.Seconds() {
		t.Errorf("%s takes %.4g s, %s %.4g s", best.Label, best.Seconds(), whole.Label, whole.Seconds())
	}
	for _, n := range []int{2, 3, 8} {
		req.Pins = Pins{Slices: n}
		pinned := find(t, req, on).Best
		if p := pinned.Plan.Pipeline; p == nil || p.Slices != n || p.Ranks == 4 && pinned.Seconds() < best.Seconds() {
			t.Errorf("%d slices became %s of %.4g s; without a number %s of %.4g s", n, pinned.Label, pinned.Seconds(), best.Label, best.Seconds())
		}
	}
	req.Pins = Pins{Schedule: "seq1f1b", Pipeline: 4}
	on.Capacity = [device.NumTiers]int64{1 << 18, 1 << 18, 0}
	var misfit *Misfit
	if _, err := Search(context.Background(), req, on, nil); !errors.As(err, &misfit) || misfit.Need <= misfit.Have {
		t.Errorf("without memory: %v", err)
	}
}

// TestLargerShards: where the ranks that are judged fit and a larger shard of another does not, the plan, with a pipeline or
// without, is lowered again with as much memory left free as that one lacks.
func TestLargerShards(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, pins := range []Pins{{Pipeline: 2, Schedule: "1f1b", MicroBatch: 4}, {MicroBatch: 4}} {
		req := small(t)
		req.Ranks, req.GlobalBatch, req.Pins = 4, 16, pins
		m := joined(t, 2e8)
		find := func(p *problem) (shortlist, error) { return searchPipelines(t.Context(), p, nil, anyPlan) }
		if pins.Pipeline == 0 {
			find = func(p *problem) (shortlist, error) { return planUniform(t.Context(), p, nil) }
		}
		roomy, err := find(newProblem(req, m))
		check(t, err)
		m.Capacity[device.DeviceTier] = roomy[0].Needs()[device.DeviceTier]
		p := newProblem(req, m)
		found, err := find(p)
		check(t, err)
		const lacking = 1 << 20
		first := found[0]
		large := *first.Program
		large.Height[device.DeviceTier] = m.Capacity[device.DeviceTier] + lacking
		first.Ranks = slices.Clone(first.Programs)
		for len(first.Ranks) < req.Ranks {
			first.Ranks = append(first.Ranks, &large)
		}
		first.Fits = false
		found, err = lowerAllRanks(t.Context(), p, shortlist{first})
		check(t, err)
		best := found[0]
		if need := best.Needs()[device.DeviceTier]; !best.Fits || best.Kind != first.Kind || len(best.Ranks) != 4 || need > m.Capacity[device.DeviceTier]-lacking {
			t.Errorf("%s, fits: %v, %d ranks, with %d bytes of %d; it had to be %s with %d free", best.Label, best.Fits, len(best.Ranks), need, m.Capacity[device.DeviceTier], first.Label, lacking)
		}
		if best.Program.Capacity != m.Capacity || best.Seconds() < first.Seconds() {
			t.Errorf("capacity %v, %.4g s; with more memory it takes %.4g s", best.Program.Capacity, best.Seconds(), first.Seconds())
		}
	}
}

// TestLeadersFirst: the best task of each depth that is near the best of all comes first, then all others by their estimates.
func TestLeadersFirst(t *testing.T) {
	rng := testkit.Rand(t)
	for range testkit.Count(50, 200, 2000) {
		tasks := make([]*task, 1+rng.IntN(20))
		for i := range tasks {
			tasks[i] = &task{shape: &shape{depth: 2 << rng.IntN(3)}, estimate: 1 + float64(rng.IntN(40))/200}
		}
		slices.SortStableFunc(tasks, func(a, b *task) int { return cmp.Compare(a.estimate, b.estimate) })
		least := map[int]float64{}
		for _, k := range tasks {
			if _, ok := least[k.depth]; !ok {
				least[k.depth] = k.estimate
			}
		}
		list := leadersFirst(tasks)
		n := slices.IndexFunc(list, func(k *task) bool { return !k.leads })
		if n < 0 {
			n = len(list)
		}
		seen := map[int]bool{}
		for _, k := range list[:n] {
			if seen[k.depth] || k.estimate != least[k.depth] || k.estimate > 1.05*tasks[0].estimate {
				t.Errorf("depth %d at %v leads; the least of its depth is %v, of all %v", k.depth, k.estimate, least[k.depth], tasks[0].estimate)
			}
			seen[k.depth] = true
		}
		for depth, e := range least {
			if e <= 1.05*tasks[0].estimate && !seen[depth] {
				t.Errorf("no task of depth %d leads, at %v of %v", depth, e, tasks[0].estimate)
			}
		}
		sorted := func(l []*task) bool {
			return slices.IsSortedFunc(l, func(a, b *task) int { return cmp.Compare(a.estimate, b.estimate) })
		}
		if len(list) != len(tasks) || !sorted(list[:n]) || !sorted(list[n:]) || slices.ContainsFunc(list[n:], func(k *task) bool { return k.leads }) {
			t.Errorf("of %d tasks, %d lead, and the order is wrong", len(tasks), n)
		}
	}
}
