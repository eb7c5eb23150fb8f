package cpu

import (
	"cmp"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/clock"
)

// TestTurns: with a single processor of Go's, a copy that becomes ready while kernels run does not wait
// for them to end: it has its turn between two tasks. Nor does a kernel that may begin wait for the
// copy.
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
	if copied, last := spans[1], spans[2]; copied.Start < spans[0].End || copied.Start < last.Start || copied.End > last.End {
		t.Errorf("the copy ran at %v, the product that it does not depend on at %v, the one that it waits for at %v", copied, last, spans[0])
	}
}

// TestApart: of ranks that share a core but are to compute apart, one computes at a time, for whole
// calls, even while kernels step back after each task for a stream that never comes.
func TestApart(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const ranks, calls, n = 3, 4, 256
	f := NewFabric(ranks)
	var all []device.Span
	var devices []*Device
	spans := make([][]device.Span, ranks)
	for r := range ranks {
		d := newDevice(t, Options{Workers: 1, Fabric: f, Rank: r, Apart: true}, 3*4*n*n, 0)
		matrix := func(k int64) device.Operand { return operand(device.DeviceTier, k*4*n*n, n, n, n) }
		var list []device.Call
		for range calls {
			list = append(list, device.Call{Op: graph.Linear, Stream: device.Compute, Args: []device.Operand{matrix(0), matrix(1), matrix(2)}})
		}
		spans[r] = make([]device.Span, calls)
		if _, err := d.Prepare(list, spans[r]); err != nil {
			t.Fatal(err)
		}
		d.turns.of(r, device.DiskRead).Store(1)
		devices = append(devices, d)
	}
	for i := range calls {
		for _, d := range devices {
			d.Launch(i)
		}
	}
	for r, d := range devices {
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
		all = append(all, spans[r]...)
	}
	slices.SortFunc(all, func(a, b device.Span) int { return cmp.Compare(a.Start, b.Start) })
	for i := 1; i < len(all); i++ {
		if all[i].Start < all[i-1].End {
			t.Errorf("calls ran at %v and %v", all[i-1], all[i])
		}
	}
}

// TestSoon: a waiter lingers only while no kernel runs and a stream wants a core within the time that
// an idle process would oversleep.
func TestSoon(t *testing.T) {
	for _, c := range []struct {
		name    string
		in      time.Duration
		working int32
		want    bool
	}{
		{"nobody wants", 0, 0, false},
		{"in half a unit", sleepUnit / 2, 0, true},
		{"others work", sleepUnit / 2, 1, false},
		{"much later", 100 * sleepUnit, 0, false},
		{"overdue", -sleepUnit, 0, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &Device{turns: newTurns(1), working: new(atomic.Int32), opened: clock.Now()}
			time.Sleep(time.Hour)
			s := stream{device: d, turn: d.turns.of(0, device.DevToHost)}
			if c.in != 0 {
				s.want(clock.Now().Add(c.in))
			}
			d.working.Store(c.working)
			if got := s.soon(); got != c.want {
				t.Errorf("%s: %v", c.name, got)
			}
			if s.soon() {
				t.Errorf("%s: looks on although the clock stands", c.name)
			}
		})
	}
}
