package machine

import (
	"errors"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/session"
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

// scarce is a backend with little memory, on which no device may be opened.
type scarce struct {
	backend
	memoryHere hardware.Memory
	ranks      int
}

func (b scarce) memory(_ string, process int64) (hardware.Memory, error) {
	m := b.memoryHere
	m.Host -= process
	return m, nil
}

func (b scarce) probed() int { return b.ranks }

// TestRoomToProbe: a probe that its process would be killed for is refused before anything is reserved.
func TestRoomToProbe(t *testing.T) {
	process := session.ProcessBytes(&graph.Graph{})
	for _, c := range []struct {
		name   string
		shared bool
		ranks  int
		arenas int64
	}{
		{"device and host share memory", true, 1, 2 * hardware.ProbeBytes},
		{"several at once", true, 3, 6 * hardware.ProbeBytes},
		{"a device with its own", false, 2, 2 * hardware.ProbeBytes},
	} {
		b := scarce{memoryHere: hardware.Memory{Shared: c.shared, Host: process + c.arenas}, ranks: c.ranks}
		if err := roomToProbe(b, c.ranks, ""); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		b.memoryHere.Host--
		if _, err := probe(b, c.ranks, ""); !errors.Is(err, device.ErrMemory) {
			t.Errorf("%s, a byte too little: %v", c.name, err)
		}
	}
	many := scarce{memoryHere: hardware.Memory{Shared: true, Host: process + 2*hardware.ProbeBytes}, ranks: 1}
	if err := roomToProbe(many, 64, ""); !errors.Is(err, device.ErrMemory) {
		t.Errorf("64 ranks, of which one is probed at a time: %v", err)
	}
}
