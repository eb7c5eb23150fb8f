package hardware_test

import (
	"math"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/null"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestProbePeers: on virtual ranks whose link is known, the measured link prices messages and collectives
// alike, also where sums are slower than rings.
func TestProbePeers(t *testing.T) {
	want := known(t, "a100-80")
	const slow = 1.3 // of a reduce_scatter of four
	cost := func(c *device.Call) float64 {
		s := want.Cost(c)
		if c.Op == graph.ReduceScatter && len(c.Peers) == 4 {
			s *= slow
		}
		return s
	}
	for _, ranks := range []int{2, 4, 6} {
		f := null.NewFabric(ranks)
		var devices []device.Device
		for r := range ranks {
			d, err := f.Device(r, cost)
			if err != nil {
				t.Fatal(err)
			}
			devices = append(devices, d)
		}
		link, measured, _, err := hardware.ProbePeers(devices)
		if err != nil {
			t.Fatal(err)
		}
		got := known(t, "a100-80")
		*got.Link(device.DeviceTier, device.DeviceTier) = link
		got.Add(measured)
		if err := got.Validate(); err != nil {
			t.Fatal(err)
		}
		peers := []int{0, 1, 2, 3, 4, 5}
		for _, n := range []int{2, 4, 6} {
			if n > ranks {
				continue
			}
			whole, part := operand(0, graph.F32, 1, 6<<20), operand(0, graph.F32, 1, 6<<20/n)
			for _, c := range []device.Call{
				{Op: graph.AllGather, Stream: device.Collective, Args: []device.Operand{whole, part}, Peers: peers[:n]},
				{Op: graph.ReduceScatter, Stream: device.Collective, Args: []device.Operand{part, whole}, Peers: peers[:n]},
				{Op: graph.AllReduce, Stream: device.Collective, Args: []device.Operand{whole}, Peers: peers[:n]},
				{Op: graph.Recv, Stream: device.Recv, Args: []device.Operand{part}, Peers: []int{1}},
			} {
				if r := got.Cost(&c) / cost(&c); math.Abs(r-1) > 0.03 {
					t.Errorf("%d ranks: %s costs %v of what it should", ranks, hardware.Key(&c), r)
				}
			}
		}
	}
	if _, _, _, err := hardware.ProbePeers([]device.Device{null.New(cost)}); err == nil {
		t.Error("one device has peers")
	}
}

// TestProbePeersCPU: the measured link between ranks of this process is valid.
func TestProbePeersCPU(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := cpu.NewFabric(4)
	var devices []device.Device
	for r := range 4 {
		d := cpu.New(cpu.Options{Workers: 1, Fabric: f, Rank: r})
		defer d.Close()
		devices = append(devices, d)
	}
	link, measured, _, err := hardware.ProbePeers(devices)
	if err != nil {
		t.Fatal(err)
	}
	h := known(t, "h100")
	*h.Link(device.DeviceTier, device.DeviceTier) = link
	h.Add(measured)
	if err := h.Validate(); err != nil {
		t.Error(err)
	}
	t.Logf("%+v", link)
	for _, m := range measured {
		family := hardware.Key(&m.Call)
		t.Logf("%s: %.3g s", family, m.Seconds)
	}
}

// TestProfileSkips: Profile skips calls between ranks.
func TestProfileSkips(t *testing.T) {
	d := cpu.New(cpu.Options{Workers: 1})
	defer d.Close()
	if err := d.Reserve(device.DeviceTier, 1<<16); err != nil {
		t.Fatal(err)
	}
	x := operand(0, graph.F32, 1, 64)
	list, err := hardware.Profile([]device.Call{
		{Op: graph.AllReduce, Stream: device.Collective, Peers: []int{0, 1}, Args: []device.Operand{x}},
		{Op: graph.Add, Args: []device.Operand{x, x}},
	}, d, 0)
	if err != nil || len(list) != 1 || list[0].Call.Op != graph.Add {
		t.Errorf("%v, %v", list, err)
	}
}
