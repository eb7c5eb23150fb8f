package train

import (
	"math"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/alert"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/draw"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// TestSlowedLink: a link that is half as fast as it was predicted to be is named by the alert, also where computing waits for the other
// one, which waits for it; what is as predicted is no reason for an alert.
func TestSlowedLink(t *testing.T) {
	g := samples.BuildGPT(t, 6, 256, 4, 512, 128, true)
	pl := plan.Plain(g, 64)
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		c.Weights, c.Grads, c.State = device.HostTier, device.HostTier, device.HostTier
	}
	pl.Prefetch, pl.Cache = 2, 2*pl.CacheNeeded(g)
	p, err := lower.Lower(t.Context(), g, pl, lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1, Capacity: program.NoLimits})
	check(t, err)
	step := func(toDevice, toHost float64) []draw.Run {
		h, err := hardware.KnownRank("l4", 1)
		check(t, err)
		h.Link(device.HostTier, device.DeviceTier).Bandwidth *= toDevice
		h.Link(device.DeviceTier, device.HostTier).Bandwidth *= toHost
		timeline, err := sim.Run(p, h)
		check(t, err)
		return []draw.Run{{Program: p, Timeline: timeline}}
	}
	const hidden = 0.1 // of the card's links: then a step hides nearly all copies
	predicted := step(hidden, hidden)
	for _, c := range []struct {
		toDevice, toHost float64
		says             string
	}{
		{1, 1, ""},
		{0.5, 1, "; h2d takes 2.0 times as long as predicted"},
		{1, 0.5, "; d2h takes 2.0 times as long as predicted"},
	} {
		w, err := alert.New(alert.Options{})
		check(t, err)
		events := w.Add(alert.Point{Step: 2, ValLoss: math.NaN(), Stalls: waited(predicted, step(hidden*c.toDevice, hidden*c.toHost))})
		if len(events) != min(len(c.says), 1) || len(events) > 0 && !strings.Contains(events[0].Text, c.says) {
			t.Errorf("links of %v and %v: %+v", c.toDevice, c.toHost, events)
		}
	}
}
