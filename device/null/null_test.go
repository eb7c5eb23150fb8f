package null

import (
	"math"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

func prepared(t *testing.T, n int, spans []device.Span) *Device {
	t.Helper()
	d := New(func(c *device.Call) float64 { return float64(c.Args[0].Cols) })
	if err := d.Reserve(device.DeviceTier, 4096); err != nil {
		t.Fatal(err)
	}
	var calls []device.Call
	for i := range n {
		o := device.Operand{DType: graph.F32, Rows: 1, Cols: i + 1, Stride: i + 1}
		calls = append(calls, device.Call{Op: graph.Add, Stream: device.Stream(i % 2), Args: []device.Operand{o, o}})
	}
	if _, err := d.Prepare(calls, spans); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestClock: four calls of 1 to 4 seconds on two streams, where stream 1
// waits for call 2 before call 3, end at 1, 2, 4 and 8.
func TestClock(t *testing.T) {
	spans := make([]device.Span, 4)
	d := prepared(t, 4, spans)
	for range 2 {
		for i := range 3 {
			d.Launch(i)
		}
		d.Wait(1, 2)
		d.Launch(3)
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
		want := []device.Span{{Start: 0, End: 1}, {Start: 0, End: 2}, {Start: 1, End: 4}, {Start: 4, End: 8}}
		for i := range spans {
			if spans[i] != want[i] {
				t.Errorf("call %d: %v, want %v", i, spans[i], want[i])
			}
		}
	}
}

func TestMisuse(t *testing.T) {
	d := prepared(t, 2, nil)
	for want, do := range map[string]func(){
		"launched twice":    func() { d.Launch(0); d.Launch(0) },
		"not been launched": func() { d.Wait(0, 1) },
		"are prepared":      func() { d.Launch(2) },
	} {
		do()
		if err := d.Sync(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q", err, want)
		}
		if err := d.Sync(); err != nil {
			t.Errorf("the error stays: %v", err)
		}
	}
	o := device.Operand{DType: graph.F32, Addr: 4092, Rows: 1, Cols: 2, Stride: 2}
	if _, err := d.Prepare([]device.Call{{Op: graph.Add, Args: []device.Operand{o, o}}}, nil); err == nil {
		t.Error("a call outside of the arena was accepted")
	}
	if d.Read(0, math.MaxInt64, make([]byte, 1)) == nil || d.Write(0, 4096, make([]byte, 1)) == nil || d.Read(0, 0, make([]byte, 4096)) != nil {
		t.Error("bounds of Read and Write are wrong")
	}
	n := New(func(*device.Call) float64 { return math.NaN() })
	o.Addr = 0
	if err := n.Reserve(0, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Prepare([]device.Call{{Op: graph.Add, Args: []device.Operand{o, o}}}, nil); err == nil {
		t.Error("a cost of NaN was accepted")
	}
}
