package draw

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/device"
)

// TestStep: the data of a picture say what the program and its timeline do: each used buffer is a box at its address, each
// stream's blocks cover its busy time without overlapping, a tier's classes at their most come to no less than what is
// live at its peak, and a stall ends when what is waited for does.
func TestStep(t *testing.T) {
	r := example(t, 40)
	var text bytes.Buffer
	if err := WriteStep(&text, r); err != nil {
		t.Fatal(err)
	}
	var s Step
	if err := json.Unmarshal(text.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	ran := s.Runs[0]
	boxes := 0
	for _, tier := range ran.Tiers {
		at, err := device.ParseTier(tier.Name)
		if err != nil || tier.Height != r.Program.Height[at] || tier.Peak != r.Timeline.Peak[at] {
			t.Errorf("%s: planned %d, reached %d (%v)", tier.Name, tier.Height, tier.Peak, err)
		}
		sum := int64(0)
		for _, n := range tier.Most {
			sum += n
		}
		if most := alloc.Most(r.Timeline.Live[at]); sum < most {
			t.Errorf("%s: classes come to %d bytes, and %d are live at once", tier.Name, sum, most)
		}
		for _, b := range tier.Boxes {
			if b.Addr < 0 || b.Addr+b.Size > tier.Height || b.End < b.Start || b.End > ran.Makespan {
				t.Errorf("%s: the box %+v is outside", tier.Name, b)
			}
		}
		boxes += len(tier.Boxes)
	}
	used := 0
	for _, life := range r.Timeline.Lives(r.Program) {
		if life.End >= life.Start {
			used++
		}
	}
	if boxes != used {
		t.Errorf("%d boxes for %d buffers", boxes, used)
	}
	for _, row := range ran.Streams {
		last, covered := 0.0, 0.0
		for _, b := range row.Blocks {
			if b.Start < last || b.End < b.Start {
				t.Errorf("%s: block %+v begins before %v", row.Name, b, last)
			}
			last, covered = b.End, covered+b.End-b.Start
		}
		if covered < row.Busy-1e-9 {
			t.Errorf("%s: blocks cover %v s of %v", row.Name, covered, row.Busy)
		}
		for _, stall := range row.Stalls {
			if !slices.ContainsFunc(r.Timeline.Spans, func(d device.Span) bool { return d.End == stall.End || d.Start == stall.End }) || stall.On != "h2d" {
				t.Errorf("stall %+v ends when nothing does", stall)
			}
		}
	}
	if len(ran.Streams) < 2 {
		t.Errorf("%d streams", len(ran.Streams))
	}
}
