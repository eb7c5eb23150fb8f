package search

import (
	"fmt"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/sim"
)

// TestRivals: the result is never slower than a rival that fits, even on a machine where only a plan that the
// search does not think of is fast. Rivals for other batches do not affect it, and with decisions of the user
// no rivals do.
func TestRivals(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req, m := tiny(t), machine(t, 128<<20, 1)
	const odd = 2 // rows of logits
	usual := m.Cost
	m.Cost = sim.CostFunc(func(c *device.Call) float64 {
		if c.Op == graph.CrossEntropy && c.Args[0].Rows != odd {
			return 1
		}
		return usual.Cost(c)
	})
	alone := find(t, req, m)
	rival := *alone.Best.Plan
	rival.HeadRows = odd
	req.Rivals = []Rival{{Name: "other batch", Plan: plan.Plain(req.Graph, 2*req.GlobalBatch)}, {Name: "odd", Plan: &rival}}
	c, err := Evaluate(t.Context(), req, &rival, m, "odd")
	check(t, err)
	check(t, c.Time(m))
	if !c.Fits {
		t.Fatal("the rival does not fit")
	}
	best := find(t, req, m)
	if c.Seconds() < alone.Best.Seconds() && best.Best.Label != "as odd" || best.Best.Seconds() > c.Seconds() {
		t.Errorf("%s takes %.6g s, the rival %.6g, without it %.6g", best.Best.Label, best.Best.Seconds(), c.Seconds(), alone.Best.Seconds())
	}
	if c.Seconds() >= alone.Best.Seconds() {
		t.Errorf("the rival takes %.6g s, the search's own plan %.6g: this shows nothing", c.Seconds(), alone.Best.Seconds())
	}
	req.Pins.HeadRows = 64
	if pinned := find(t, req, m); pinned.Best.Plan.HeadRows != 64 {
		t.Errorf("%d rows of logits, 64 were asked for", pinned.Best.Plan.HeadRows)
	}
}

// TestHeadUnit: where a device's sums may be cut only at multiples of a number of tokens, the head processes
// multiples of it, also in plans of others, however fast those would be.
func TestHeadUnit(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	req, m := tiny(t), machine(t, 128<<20, 1)
	usual := m.Cost
	m.Cost = sim.CostFunc(func(c *device.Call) float64 {
		if c.Op == graph.CrossEntropy {
			return float64(c.Args[0].Rows * c.Args[0].Rows)
		}
		return usual.Cost(c)
	})
	rival := *plan.Plain(req.Graph, req.GlobalBatch)
	rival.HeadRows = 2
	req.Rivals = []Rival{{Name: "odd", Plan: &rival}}
	if pl := find(t, req, m).Best.Plan; pl.HeadRows != rival.HeadRows {
		t.Fatalf("%d rows of logits: this shows nothing", pl.HeadRows)
	}
	for unit, least := range map[int]int{0: 1, 32: 32, 64: 64, 128: 128} {
		req.HeadUnit = unit
		rows := req.GlobalBatch * req.Graph.Seq
		for req.fewerRows(rows) < rows {
			rows = req.fewerRows(rows)
		}
		if rows != least {
			t.Errorf("with a unit of %d the head takes %d tokens at least, want %d", unit, rows, least)
		}
		if unit == 0 || unit != 64 && testkit.AtLevel() < testkit.All {
			continue
		}
		if pl := find(t, req, m).Best.Plan; pl.HeadRows%unit != 0 {
			t.Errorf("%d rows of logits, which %d does not divide", pl.HeadRows, unit)
		}
	}
}

// TestRivalLabel: to a user of one rank, a plan is described by what it does, not by the name of a way to divide it among several.
func TestRivalLabel(t *testing.T) {
	pl := plan.Plain(tiny(t).Graph, 4)
	for _, c := range []struct {
		ranks, offloaded int
		way              bool
		want             string
	}{
		{1, 0, true, "everything on the device, micro-batch 4 x 1"},
		{1, 1, true, fmt.Sprintf("everything on the device for %d of %d chunks, micro-batch 4 x 1", len(pl.Chunks)-1, len(pl.Chunks))},
		{1, len(pl.Chunks), true, "optimizer on the host, micro-batch 4 x 1"},
		{2, 0, true, "as zero-2"},
		{1, 0, false, "as zero-2"},
	} {
		rival := *pl
		rival.Ranks, rival.Chunks = c.ranks, slices.Clone(pl.Chunks)
		for i := range c.offloaded {
			rival.Chunks[i].State = device.HostTier
		}
		if got := (Rival{"zero-2", &rival, c.way}).label(); got != c.want {
			t.Errorf("%d ranks, %d chunks offloaded: %q, want %q", c.ranks, c.offloaded, got, c.want)
		}
	}
}
