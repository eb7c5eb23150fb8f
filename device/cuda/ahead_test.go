//go:build linux

package cuda

import (
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// TestAhead: a stream that waits for the host gets more calls than the driver has room for. The worker
// must not be inside the driver then, where it would lock everybody else out, including the host before
// it does what the stream waits for.
//
//	compute      kernel ...                          [wait: second] copies, thousands
//	d2h, h2d            [wait: kernel] down   ...  up [wait: first], down
//	host                                first         second
func TestAhead(t *testing.T) {
	d, g := bare(t, Options{}, 1<<12, 1<<12)
	if g != nil {
		g.Kernel = func([]byte, string, [3]uint32, [3]uint32, uint32, []byte) error {
			g.Held(2) // the host, for the first copy, and the worker
			return nil
		}
	}
	dev, host := device.DeviceTier, device.HostTier
	f := device.Operand{DType: graph.F32, Rows: 1, Cols: 16, Stride: 16}
	calls := []device.Call{
		{Op: graph.Add, Args: []device.Operand{f, f}},
		copyCall(device.DevToHost, word(host, 0), word(dev, 0)),
		copyCall(device.HostCompute, word(host, 64), word(host, 0)),
		copyCall(device.HostToDev, word(dev, 64), word(host, 64)),
		copyCall(device.DevToHost, word(host, 128), word(dev, 64)),
		copyCall(device.HostCompute, word(host, 192), word(host, 128)),
	}
	ordered := len(calls)
	for range 2 * device.QueueLen {
		calls = append(calls, copyCall(device.Compute, word(dev, 192), word(dev, 128)))
	}
	for _, spans := range [][]device.Span{nil, make([]device.Span, len(calls))} {
		n, err := d.Prepare(calls, spans)
		if err != nil {
			t.Fatal(err)
		}
		for i := range calls {
			if i > 0 && i <= ordered {
				d.Wait(calls[i].Stream, n+i-1)
			}
			d.Launch(n + i)
		}
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
	}
}
