package search

import (
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
)

// TestDifference: what is the same takes no place among the reported differences, and bytes of state are those
// of its storage format.
func TestDifference(t *testing.T) {
	m, err := family.Known("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	g, err := graph.Build(m, 64, graph.BF16)
	if err != nil {
		t.Fatal(err)
	}
	on := func(tier device.Tier, elems int64, edit func(pl *plan.Plan)) *plan.Plan {
		pl := plan.Plain(g, 4)
		pl.Chunks = plan.Layout(g, elems)
		for i := range pl.Chunks {
			pl.Chunks[i].State = tier
		}
		edit(pl)
		return pl
	}
	const whole = 1 << 62
	was := on(device.HostTier, whole, func(*plan.Plan) {})
	is := on(device.HostTier, whole, func(pl *plan.Plan) {
		pl.MicroBatch, pl.MicroBatches = 2, 2
		for i := range pl.Chunks {
			pl.Chunks[i].Shard, pl.Chunks[i].Update = "state", plan.UpdateOnDevice
		}
	})
	if text := Difference(g, was, is); !strings.Contains(text, "streamed through the device for updates") {
		t.Errorf("%q says nothing of updates", text)
	}
	for state, want := range map[plan.StateFormat]string{plan.FP32State: "1.2 GiB more", plan.BF16State: "475 MiB more"} {
		set := func(pl *plan.Plan) { pl.State = state }
		if text := Difference(g, on(device.HostTier, whole, set), on(device.DeviceTier, 1<<20, set)); !strings.HasPrefix(text, want) {
			t.Errorf("state %v: %q, want %s", state, text, want)
		}
	}
}
