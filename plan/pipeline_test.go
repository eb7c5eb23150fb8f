package plan

import (
	"context"
	"errors"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/sim"
)

// joined is what one of four ranks has of a machine with such GPUs, and what
// joins them as fast as said.
func joined(t *testing.T, peers float64) *Machine {
	t.Helper()
	h, err := hardware.KnownRank("rtx4090", 4)
	check(t, err)
	l := h.Link(device.DeviceTier, device.DeviceTier)
	l.Bandwidth, l.Latency = peers, 1e-7
	for i := range h.Engines { // else the smallest of models are about launches
		h.Engines[i].Overhead = 0
	}
	return &Machine{Capacity: [device.NumTiers]int64{1 << 30, 1 << 34, 0}, Cost: sim.CostFunc(h.Cost)}
}

// TestLinkDecides: with a slow link between ranks a pipeline wins, since it
// sends activations of a few micro-batches instead of all gradients; with a fast
// one data parallelism, which has no bubble.
func TestLinkDecides(t *testing.T) {
	req := small(t)
	req.Ranks, req.GlobalBatch = 4, 32
	for _, c := range []struct {
		peers    float64
		pipeline bool
	}{{2e8, true}, {1e12, false}} {
		m := joined(t, c.peers)
		best := find(t, req, m).Best
		if got := best.Plan.Pipeline != nil; got != c.pipeline {
			t.Errorf("at %g bytes/s: %s", c.peers, best.Label)
		}
		for _, pins := range []Pins{{Pipeline: 1}, {Pipeline: 4, Schedule: "1f1b"}, {Pipeline: 2, Schedule: "zb-h1"}, {Pipeline: 2, Schedule: "zb-v"}} {
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

// TestPipelinePins: what nobody can make is refused.
func TestPipelinePins(t *testing.T) {
	req := small(t)
	req.Ranks, req.GlobalBatch = 4, 8
	for _, p := range []Pins{{Pipeline: 3}, {Schedule: "dualpipe", Pipeline: 4, MicroBatch: 8}} {
		if PossiblePipeline(&p, req.Ranks, req.GlobalBatch) == nil {
			t.Errorf("%+v is said to be possible", p)
		}
	}
	m := joined(t, 1e10)
	m.Capacity = [device.NumTiers]int64{1 << 20, 1 << 20, 0}
	req.Pins.Schedule = "1f1b"
	var misfit *Misfit
	if _, err := Search(context.Background(), req, m, nil); !errors.As(err, &misfit) || misfit.Need <= misfit.Have {
		t.Fatalf("without memory: %v", err)
	}
	for _, p := range misfit.Frugal.Programs {
		for tier, h := range p.Height {
			m.Capacity[tier] = max(m.Capacity[tier], h)
		}
	}
	if _, err := Search(context.Background(), req, m, nil); err != nil {
		t.Errorf("with the memory that is said to do: %v", err)
	}
}
