package null

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// joined makes n devices on which a call takes one second per column of its first operand, plus as many
// seconds as the rank's number.
func joined(t *testing.T, n int) []*Device {
	t.Helper()
	f := NewFabric(n)
	var list []*Device
	for r := range n {
		d, err := f.Device(r, func(c *device.Call) float64 { return float64(c.Args[0].Cols + r) })
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Reserve(device.DeviceTier, 4096); err != nil {
			t.Fatal(err)
		}
		list = append(list, d)
	}
	if _, err := f.Device(0, nil); err == nil {
		t.Error("rank 0 was given twice")
	}
	return list
}

func flat(cols int) device.Operand {
	return device.Operand{DType: graph.F32, Rows: 1, Cols: cols, Stride: cols}
}

func sum(cols int, peers ...int) device.Call {
	return device.Call{Op: graph.AllReduce, Stream: device.Collective, Peers: peers, Args: []device.Operand{flat(cols)}}
}

func add(cols int) device.Call {
	return device.Call{Op: graph.Add, Args: []device.Operand{flat(cols), flat(cols)}}
}

// together runs a round on each device: its calls, of which the second waits
// for the first.
func together(t *testing.T, list []*Device, calls [][]device.Call, spans [][]device.Span) []error {
	t.Helper()
	errs := make([]error, len(list))
	var all sync.WaitGroup
	for r, d := range list {
		first, err := d.Prepare(calls[r], spans[r])
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for i := range calls[r] {
				if i == 1 {
					d.Wait(calls[r][1].Stream, first)
				}
				d.Launch(first + i)
			}
			errs[r] = d.Sync()
		})
	}
	all.Wait()
	return errs
}

// TestMeeting: ranks that work for 3 and 8 seconds then do a sum that costs them 4 and 5: it takes from
// 8 to 13 on both.
func TestMeeting(t *testing.T) {
	list := joined(t, 2)
	spans := [][]device.Span{make([]device.Span, 2), make([]device.Span, 2)}
	for range 3 {
		if err := errors.Join(together(t, list, [][]device.Call{{add(3), sum(4, 0, 1)}, {add(7), sum(4, 0, 1)}}, spans)...); err != nil {
			t.Fatal(err)
		}
		for r := range spans {
			if want := (device.Span{Start: 8, End: 13}); spans[r][1] != want {
				t.Errorf("rank %d: %v, want %v", r, spans[r][1], want)
			}
		}
	}
}

// TestNeverMeet: calls that do not fit, and ranks that wait for each other,
// are errors on all ranks; one that is lost is an error on the others.
func TestNeverMeet(t *testing.T) {
	recv := device.Call{Op: graph.Recv, Stream: device.Recv, Peers: []int{0}, Args: []device.Operand{flat(1)}}
	for want, calls := range map[string][][]device.Call{
		"rank 0 sums 4 elements, but rank 1 sums 5": {{sum(4, 0, 1)}, {sum(5, 0, 1)}},
		"the ranks wait for each other":             {{sum(4, 0, 1)}, {recv}},
		"or for calls that are not launc":           {{sum(4, 0, 1), sum(4, 0, 1)}, {sum(4, 0, 1), recv}},
	} {
		list := joined(t, 2)
		for r, err := range together(t, list, calls, make([][]device.Span, 2)) {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %v, want %q", r, err, want)
			}
		}
	}
	list := joined(t, 2)
	var all sync.WaitGroup
	all.Go(func() { list[1].Abort(errors.New("switched off")) })
	first, err := list[0].Prepare([]device.Call{sum(4, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	list[0].Launch(first)
	err = list[0].Sync()
	all.Wait()
	var lost *device.PeerError
	if !errors.As(err, &lost) || lost.Rank != 1 || !strings.Contains(err.Error(), "switched off") {
		t.Errorf("rank 0 says %v", err)
	}
}
