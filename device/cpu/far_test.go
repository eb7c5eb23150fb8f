package cpu

import (
	"errors"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/link/loopback"
	"github.com/athanor-llm/athanor/graph"
)

// fabricsOn returns the fabrics of hosts that have the given ranks, joined by connections
// over the loopback interface if there are several.
func fabricsOn(t *testing.T, hosts []int) []*Fabric {
	t.Helper()
	n := slices.Max(hosts) + 1
	if n == 1 {
		return []*Fabric{NewFabric(len(hosts))}
	}
	hubs, fabrics := loopback.Hubs(hosts, n), make([]*Fabric, n)
	for i := range hubs {
		fabrics[i] = NewFabricAcross(len(hosts), hubs[i])
	}
	return fabrics
}

// TestFarWaits: waiting for a rank of another process takes processor time, but does not count as
// progress; otherwise a watchdog would never notice that the rank hangs.
func TestFarWaits(t *testing.T) {
	list := joined(t, []int{0, 1}, Options{Workers: 1})
	sum := device.Call{Op: graph.AllReduce, Stream: device.Collective, Peers: []int{0, 1}, Args: []device.Operand{vector(graph.F32, 0, 64)}}
	first, err := list[0].Prepare([]device.Call{sum}, nil)
	if err != nil {
		t.Fatal(err)
	}
	list[0].Launch(first)
	for began, enough := list[0].Progress(), processorTime()+3*meterUnit; processorTime() < enough; {
		if n := list[0].Progress(); n != began {
			t.Fatalf("progress went from %d to %d", began, n)
		}
	}
	list[0].Abort(errors.New("enough"))
	if list[0].Sync() == nil {
		t.Error("a call without its partner completed")
	}
}
