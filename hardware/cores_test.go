package hardware_test

import (
	"math"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
)

// local returns a CPU of atOnce ranks with the given cores each.
func local(cores, atOnce int, duties ...hardware.Duty) *hardware.Hardware {
	return &hardware.Hardware{
		Cores: cores, AtOnce: atOnce, Duties: append(duties, hardware.Duty{Stream: device.Compute, Part: 1}),
		Engines: []hardware.Engine{{Stream: device.Compute}, {Stream: device.HostCompute}},
	}
}

// TestCrowdCases: who gets how much of two cores.
func TestCrowdCases(t *testing.T) {
	up, host := hardware.Duty{Stream: device.HostToDev, Part: 1}, hardware.Duty{Stream: device.HostCompute, Part: 1}
	slow := hardware.Duty{Stream: device.HostToDev, Part: 0.1}
	for _, c := range []struct {
		name                  string
		h                     *hardware.Hardware
		compute, host, copies float64 // that run
		want                  [3]float64
	}{
		{"a kernel alone", local(2, 1, up, host), 1, 0, 0, [3]float64{1, 1, 1}},
		{"a copy takes one of two cores", local(2, 1, up, host), 1, 0, 1, [3]float64{2, 1, 1}},
		{"host and compute kernels have half each", local(2, 1, up, host), 1, 1, 0, [3]float64{2, 2, 2}},
		{"a copy that sleeps takes little", local(2, 1, slow, host), 1, 0, 1, [3]float64{2 / 1.9, 1, 1}},
		{"a copy that only sleeps takes nothing", local(2, 1, hardware.Duty{Stream: device.HostToDev}, host), 1, 0, 1, [3]float64{1, 1, 1}},
		{"four ranks compute", local(1, 2, up, host), 4, 0, 0, [3]float64{2, 1, 1}},
		{"four ranks compute and copy", local(1, 2, up, host), 4, 0, 4, [3]float64{4, 4, 4}},
		{"a rank computes while another copies", local(1, 2, up, host), 1, 0, 1, [3]float64{1, 1, 1}},
	} {
		var active, slower [device.NumStreams]float64
		for s, n := range map[device.Stream]float64{device.Compute: c.compute, device.HostCompute: c.host, device.HostToDev: c.copies} {
			active[s] = n * c.h.Demand(&device.Call{Stream: s})
		}
		if !c.h.Crowd(&active, &slower) {
			t.Errorf("%s: no cores are shared", c.name)
		}
		got := [3]float64{slower[device.Compute], slower[device.HostCompute], slower[device.HostToDev]}
		for i := range got {
			if !(math.Abs(got[i]-c.want[i]) <= 1e-12) { // also fails if got is NaN
				t.Errorf("%s: compute, host, copies take %v times as long, want %v", c.name, got, c.want)
				break
			}
		}
	}
	var active, slower [device.NumStreams]float64
	if known(t, "h100").Crowd(&active, &slower) {
		t.Error("a GPU's streams share cores")
	}
}

// TestCrowdConserves: whatever runs, all cores are used if the demand exceeds them, none is used twice, and no
// stream gets faster.
func TestCrowdConserves(t *testing.T) {
	r := testkit.Rand(t)
	for range 1000 {
		cores, ranks := 1+r.IntN(8), 1+r.IntN(8)
		h := local(cores, 1+r.IntN(4), hardware.Duty{Stream: device.HostToDev, Part: 1}, hardware.Duty{Stream: device.HostCompute, Part: 1})
		var active, slower [device.NumStreams]float64
		var wanted, used float64
		for _, s := range []device.Stream{device.Compute, device.HostCompute, device.HostToDev} {
			active[s] = float64(r.IntN(ranks+1)) * h.Demand(&device.Call{Stream: s})
		}
		h.Crowd(&active, &slower)
		for s, n := range active {
			if !(slower[s] >= 1) {
				t.Fatalf("%v goes faster: %v", active, slower)
			}
			wanted, used = wanted+n, used+n/slower[s]
		}
		if want := min(wanted, float64(h.AtOnce*cores)); !(math.Abs(used-want) <= 1e-9) {
			t.Fatalf("%v on %d x %d cores use %v of them, want %v", active, h.AtOnce, cores, used, want)
		}
	}
}

// TestDuties: a copy by a core keeps it busy; one over a slow link does not.
func TestDuties(t *testing.T) {
	for _, rate := range []float64{0, 50e6} {
		o := cpu.Options{Workers: 1}
		o.Rate[device.HostToDev] = rate
		d := cpu.New(o)
		for _, tier := range []device.Tier{device.DeviceTier, device.HostTier} {
			if err := d.Reserve(tier, 1<<20); err != nil {
				t.Fatal(err)
			}
		}
		spans := make([]device.Span, 1)
		x := operand(0, graph.F32, 1, 1<<18)
		from := x
		from.Tier = device.HostTier
		first, err := d.Prepare([]device.Call{{Op: graph.Copy, Stream: device.HostToDev, Args: []device.Operand{x, from}}}, spans)
		if err != nil {
			t.Fatal(err)
		}
		d.Launch(first)
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
		stats := d.Stats()
		worked, took := stats.Worked[device.HostToDev], spans[0].End-spans[0].Start
		if worked <= 0 || worked > took {
			t.Errorf("at %g bytes/s: worked for %v s of %v", rate, worked, took)
		}
		if least := float64(1<<20) / rate; rate > 0 && took < least {
			t.Errorf("at %g bytes/s: %v s are less than %v", rate, took, least)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestCrowdHosts: each host has cores of its own, and a call between hosts keeps them busy for the part of its time that was measured there.
func TestCrowdHosts(t *testing.T) {
	sums := hardware.Duty{Stream: device.Collective, Part: 1}
	h := local(1, 4, sums)
	h.Network = &hardware.Network{Hosts: 2, PerHost: 2, Duty: 0.25}
	for _, c := range []struct {
		compute float64
		want    float64
	}{{2, 1}, {4, 2}} {
		var active, slower [device.NumStreams]float64
		active[device.Compute] = c.compute
		if h.Crowd(&active, &slower); slower[device.Compute] != c.want {
			t.Errorf("%v kernels on two cores take %v times as long, want %v", c.compute, slower[device.Compute], c.want)
		}
	}
	for _, c := range []struct {
		peers []int
		want  float64
	}{{[]int{0, 2}, 1}, {[]int{0, 1}, 0.25}, {[]int{0, 1, 2, 3}, 0.25}} {
		if got := h.Demand(&device.Call{Op: graph.AllReduce, Stream: device.Collective, Peers: c.peers}); got != c.want {
			t.Errorf("a sum over ranks %v keeps %v cores busy, want %v", c.peers, got, c.want)
		}
	}
	if a, b := h.Host(1), h.Host(2); a != 1 || b != 0 { // they are dealt out in turn
		t.Errorf("ranks 1 and 2 are on hosts %d and %d", a, b)
	}
}
