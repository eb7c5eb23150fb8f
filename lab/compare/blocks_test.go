package compare

import (
	"fmt"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/policy/flexgen"
)

// TestFlexGen: on the same simulator, the block that the search finds generates at least as many tokens per second as FlexGen's policy.
func TestFlexGen(t *testing.T) {
	type machine struct {
		name         string
		device, host float64 // relative to the weights
	}
	faster := 0
	for _, c := range testkit.Sample([]machine{
		{"a100-40/pcie4", 0.9, 2}, {"t4", 0.7, 8}, {"l4", 0.8, 8}, {"t4", 0.8, 0.9}, {"rtx3090", 0.9, 1.2}, {"l4", 0.7, 0.7}, {"rtx4090/pcie3", 0.7, 30}, {"t4", 0.6, 30},
	}, 1, 1) {
		t.Run(fmt.Sprintf("%s %v %v", c.name, c.device, c.host), func(t *testing.T) {
			m, err := family.Known("opt-125m")
			check(t, err)
			m.Layers, m.Vocab = 6, 1024
			g, err := graph.BuildDecode(m, 64, 1, graph.BF16)
			check(t, err)
			var weights float64
			for i := range g.Params {
				weights += float64(g.Stored(i).Bytes())
			}
			h := machineLike(t, c.name)
			h.Memory.Device, h.Memory.Host, h.Memory.Disk = int64(c.device*weights), int64(c.host*weights), 1<<40
			r, err := (&Generating{Model: m, Hardware: h, Prompt: 48, Tokens: 16, Most: 32}).Hold(t.Context())
			check(t, err)
			t.Logf("%.0f tokens/s, %d sequences in %d batches; FlexGen %.0f, %+v %s", r.Ours, r.Sequences, r.Batches, r.FlexGen, r.Policy, r.Why)
			if r.FlexGen > r.Ours {
				t.Errorf("FlexGen generates %.0f tokens/s, the search's block %.0f", r.FlexGen, r.Ours)
			}
			if r.FlexGen > 0 {
				faster++
			}
		})
	}
	if faster == 0 {
		t.Error("no policy of FlexGen's fits")
	}
}

// machineLike describes a card and its host. A T4 is an L4 with the rates of FlexGen's machine.
func machineLike(t *testing.T, name string) *hardware.Hardware {
	t.Helper()
	h, err := hardware.KnownRank(strings.Replace(name, "t4", "l4", 1), 1)
	check(t, err)
	if name != "t4" {
		return h
	}
	theirs := flexgen.T4()
	for i := range h.Links {
		switch l := &h.Links[i]; {
		case l.From == device.HostTier && l.To == device.DeviceTier:
			l.Bandwidth, l.Curve = theirs.ToDevice, nil
		case l.From == device.DeviceTier && l.To == device.HostTier:
			l.Bandwidth, l.Curve = theirs.HiddenToHost, nil
		case l.From == device.DiskTier:
			l.Bandwidth, l.Curve = theirs.FromDisk, nil
		case l.To == device.DiskTier:
			l.Bandwidth, l.Curve = theirs.TokenToDisk, nil
		}
	}
	for i := range h.Engines {
		if e := &h.Engines[i]; e.Stream == device.Compute {
			e.Peak.BF16, e.Matmul, e.Bandwidth = theirs.PromptProducts, 1, 320e9
		}
	}
	return h
}
