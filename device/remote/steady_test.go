package remote

import (
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestSteady is L6: a round allocates nothing, on either side, with spans and without,
// and however many calls it has.
func TestSteady(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	h := newHost(t, nil)
	d := connect(t, h.addr, Place{}, 1<<16, 1<<16)
	o, p := operand(device.DeviceTier, 0, 16), operand(device.HostTier, 0, 16)
	var calls []device.Call
	for i := range 3000 {
		if i%2 == 0 {
			calls = append(calls, copyCall(device.DevToHost, p, o))
		} else {
			calls = append(calls, copyCall(device.HostToDev, o, p))
		}
	}
	first, err := d.Prepare(calls, make([]device.Span, len(calls)))
	check(t, err)
	token := make([]byte, 64)
	for _, timed := range []bool{true, false} {
		d.SetClock(timed)
		step := func() {
			if d.Write(device.DeviceTier, 0, token) != nil {
				t.Error("write")
			}
			for i := range calls {
				if i > 0 {
					d.Wait(calls[i].Stream, first+i-1)
				}
				d.Launch(first + i)
			}
			if d.Sync() != nil || d.Read(device.DeviceTier, 0, token) != nil {
				t.Error("sync")
			}
		}
		step()
		if n := testing.AllocsPerRun(20, step); n > 0 {
			t.Errorf("timed %v: %v allocations", timed, n)
		}
	}
}

// BenchmarkRound is a round of 1000 calls that do next to nothing.
func BenchmarkRound(b *testing.B) {
	h := newHost(b, nil)
	d := connect(b, h.addr, Place{}, 1<<16, 1<<16)
	o, p := operand(device.DeviceTier, 0, 16), operand(device.HostTier, 0, 16)
	const n = 1000
	var calls []device.Call
	for range n {
		calls = append(calls, copyCall(device.DevToHost, p, o))
	}
	first, err := d.Prepare(calls, make([]device.Span, n))
	check(b, err)
	for b.Loop() {
		for i := range n {
			d.Launch(first + i)
		}
		check(b, d.Sync())
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/call")
}

// BenchmarkWrite and BenchmarkRead are 64 MiB from and to the leader.
func BenchmarkWrite(b *testing.B) { benchmarkBytes(b, (*Device).Write) }
func BenchmarkRead(b *testing.B)  { benchmarkBytes(b, (*Device).Read) }

func benchmarkBytes(b *testing.B, move func(d *Device, tier device.Tier, addr int64, p []byte) error) {
	const n = 64 << 20
	h := newHost(b, nil)
	d := connect(b, h.addr, Place{}, n)
	p := make([]byte, n)
	b.SetBytes(n)
	for b.Loop() {
		check(b, move(d, device.DeviceTier, 0, p))
		check(b, d.Sync())
	}
}
