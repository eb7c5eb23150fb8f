package hardware_test

import (
	"math"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/null"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestProbePeers: on virtual ranks whose links are known, of one host and of several, the measured links price messages
// and collectives alike, also where sums are slower than rings.
func TestProbePeers(t *testing.T) {
	const slow = 1.3 // of a reduce_scatter of four
	for _, c := range []struct{ ranks, hosts int }{{2, 1}, {4, 1}, {6, 1}, {2, 2}, {4, 2}, {6, 2}, {6, 3}} {
		var on *hardware.Network
		if c.hosts > 1 {
			on = &hardware.Network{Hosts: c.hosts, PerHost: c.ranks / c.hosts}
		}
		want := known(t, "a100-80")
		if c.ranks > c.hosts && c.hosts > 1 {
			want.Join(c.hosts, c.ranks/c.hosts)
		}
		cost := func(c *device.Call) float64 {
			s := want.Cost(c)
			if c.Op == graph.ReduceScatter && len(c.Peers) == 4 {
				s *= slow
			}
			return s
		}
		got := withoutPeers(t, "a100-80")
		if err := hardware.ProbePeers(virtual(t, c.ranks, alone(want, cost)), on, got); err != nil {
			t.Fatal(err)
		}
		if err := got.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, call := range exchanges(c.ranks, c.hosts) {
			if r := got.Cost(&call) / cost(&call); math.Abs(r-1) > 0.04 {
				t.Errorf("%d ranks on %d hosts: %s of %v costs %v of what it should", c.ranks, c.hosts, hardware.Key(&call), call.Peers, r)
			}
		}
	}
	if err := hardware.ProbePeers([]device.Device{null.New(known(t, "l4").Cost)}, nil, known(t, "l4")); err == nil {
		t.Error("one device has peers")
	}
}

// alone returns the costs of a machine on which one rank of each host at a time sends a message: it has the whole network.
func alone(h *hardware.Hardware, cost null.Cost) null.Cost {
	return func(c *device.Call) float64 {
		if n := h.Network; n != nil && device.IsMessage(c.Op) && n.Host(c.Rank) != n.Host(c.Peers[0]) {
			return n.Link.Seconds(c.Args[0].Bytes())
		}
		return cost(c)
	}
}

// virtual returns that many joined devices with these costs.
func virtual(t *testing.T, ranks int, cost null.Cost) (list []device.Device) {
	f := null.NewFabric(ranks)
	for r := range ranks {
		d, err := f.Device(r, cost)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, d)
	}
	return list
}

// withoutPeers is a known machine of which the links between ranks are not known.
func withoutPeers(t *testing.T, name string) *hardware.Hardware {
	h := known(t, name)
	h.Links = slices.DeleteFunc(h.Links, func(l hardware.Link) bool { return l.From == l.To })
	return h
}

// exchanges are messages, and collectives of the first ranks and of the first host's, of a size that is not probed.
func exchanges(ranks, hosts int) (list []device.Call) {
	for _, n := range []int{2, 4, 6} {
		for _, step := range []int{1, hosts} {
			if n*step > ranks {
				continue
			}
			peers := make([]int, n)
			for i := range peers {
				peers[i] = i * step
			}
			whole, part := operand(0, graph.F32, 1, 6<<20), operand(0, graph.F32, 1, 6<<20/n)
			list = append(list,
				device.Call{Op: graph.AllGather, Stream: device.Collective, Args: []device.Operand{whole, part}, Peers: peers},
				device.Call{Op: graph.ReduceScatter, Stream: device.Collective, Args: []device.Operand{part, whole}, Peers: peers},
				device.Call{Op: graph.AllReduce, Stream: device.Collective, Args: []device.Operand{whole}, Peers: peers},
				device.Call{Op: graph.AllToAll, Stream: device.Collective, Args: []device.Operand{operand(0, graph.F32, 2*n, 1<<20), operand(0, graph.F32, 2, n<<20)}, Peers: peers},
				device.Call{Op: graph.Recv, Stream: device.Recv, Args: []device.Operand{part}, Peers: peers[1:2]})
		}
	}
	return list
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
	h := withoutPeers(t, "h100")
	if err := hardware.ProbePeers(devices, nil, h); err != nil {
		t.Fatal(err)
	}
	if err := h.Validate(); err != nil {
		t.Error(err)
	}
	t.Logf("%+v, %v", h.Link(device.DeviceTier, device.DeviceTier), h.Times)
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
