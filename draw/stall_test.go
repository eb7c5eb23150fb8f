package draw

import (
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// TestStalls: each part of a stall is on the stream that is busy then, or slow to begin, through whatever the stream waits for itself,
// and the parts come to the whole.
func TestStalls(t *testing.T) {
	instr := func(s device.Stream, waits ...int) program.Instr { return program.Instr{Stream: s, Waits: waits} }
	p := &program.Program{Instrs: []program.Instr{
		instr(device.Compute),
		instr(device.DevToHost, 0),
		instr(device.DevToHost),
		instr(device.HostCompute, 2),
		instr(device.HostToDev, 0),
		instr(device.HostToDev, 3),
		instr(device.Compute, 4, 5),
		instr(device.Compute),
	}}
	spans := []device.Span{{Start: 0, End: 2}, {Start: 2, End: 4}, {Start: 4, End: 7}, {Start: 7, End: 8}, {Start: 2, End: 3}, {Start: 9, End: 12}, {Start: 12, End: 13}, {Start: 14, End: 15}}
	r := Run{Program: p, Timeline: &sim.Timeline{Spans: spans, Makespan: 15}}
	got := r.Stalls(device.Compute)
	for i := range got {
		got[i].Text = ""
	}
	want := []Stall{{2, 7, "d2h", ""}, {7, 8, "host", ""}, {8, 12, "h2d", ""}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
