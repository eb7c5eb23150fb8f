package machine

import (
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
)

// TestPeak: the peak of all ranks is that of as many as have cores, or devices, at the same time.
func TestPeak(t *testing.T) {
	for _, c := range []struct{ ranks, atOnce, want int }{{1, 1, 1}, {2, 2, 2}, {4, 2, 2}, {2, 4, 2}, {4, 0, 4}} {
		m := Machine{ranks: c.ranks, Hardware: &hardware.Hardware{AtOnce: c.atOnce, Engines: []hardware.Engine{{
			Stream: device.Compute, Peak: hardware.Rate{F32: 1e9, BF16: 3e9},
		}}}}
		for dt, each := range map[graph.DType]float64{graph.F32: 1e9, graph.BF16: 3e9} {
			if got := m.Peak(&graph.Graph{DType: dt}); got != each*float64(c.want) {
				t.Errorf("%d ranks, %d at once: %v FLOP/s, want %d times %v", c.ranks, c.atOnce, got, c.want, each)
			}
		}
	}
}

// TestLittleDisk: a disk without room for the probe is no tier.
func TestLittleDisk(t *testing.T) {
	for _, c := range []struct {
		free   int64
		probes int
		want   int64
	}{{0, 1, 0}, {hardware.ProbeBytes - 1, 1, 0}, {hardware.ProbeBytes, 1, hardware.ProbeBytes}, {hardware.ProbeBytes, 2, 0}} {
		if got := withoutFullDisk(hardware.Memory{Host: 5, Disk: c.free}, c.probes); got.Disk != c.want || got.Host != 5 {
			t.Errorf("%d bytes free for %d probes: %+v", c.free, c.probes, got)
		}
	}
}
