package cpu

import (
	"runtime"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// TestTurns: on a single processor of Go's, a copy that becomes ready while
// kernels run does not wait for their end: it has its turn between two tasks.
func TestTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	d := newDevice(t, Options{Workers: 1}, 4<<20, 4<<20)
	const n = 512
	matrix := func(k int64) device.Operand { return operand(device.DeviceTier, k*4*n*n, n, n, n) }
	row := operand(device.HostTier, 0, 1, n, n)
	product := device.Call{Op: graph.Linear, Stream: device.Compute, Args: []device.Operand{matrix(0), matrix(1), matrix(2)}}
	spans := make([]device.Span, 3)
	first, err := d.Prepare([]device.Call{product, copyCall(device.HostToDev, operand(device.DeviceTier, 3*4*n*n, 1, n, n), row), product}, spans)
	if err != nil {
		t.Fatal(err)
	}
	d.Launch(first)
	d.Wait(device.HostToDev, first)
	d.Launch(first + 1)
	d.Launch(first + 2)
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	if copied, last := spans[1], spans[2]; copied.Start < spans[0].End || copied.End > last.End {
		t.Errorf("the copy ran at %v, the product that it does not depend on at %v, the one that it waits for at %v", copied, last, spans[0])
	}
}
