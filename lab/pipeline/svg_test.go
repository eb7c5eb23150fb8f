package pipeline

import (
	"bytes"
	"encoding/xml"
	"io"
	"testing"

	"github.com/athanor-llm/athanor/schedule"
)

// TestDrawings: SVGs are well-formed and show every unit of a small schedule.
func TestDrawings(t *testing.T) {
	for _, name := range schedule.Names() {
		s, tl := simulated(t, name, schedule.Request{Ranks: 4, Micros: 8, Costs: schedule.DefaultCosts()})
		var out bytes.Buffer
		if err := WriteSVG(&out, s, tl, schedule.DefaultCosts()); err != nil {
			t.Fatal(err)
		}
		blocks := 0
		d := xml.NewDecoder(&out)
		for {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
				for _, a := range e.Attr {
					if a.Name.Local == "rx" && a.Value != "2" {
						blocks++
					}
				}
			}
		}
		want := 0
		for _, order := range s.Orders {
			want += len(order)
		}
		if blocks != want {
			t.Errorf("%s: %d blocks for %d units", name, blocks, want)
		}
	}
}

// TestLargeDrawing: the drawing of an order of 64 ranks and 1024 micro-batches stays small enough to be opened.
func TestLargeDrawing(t *testing.T) {
	s, tl := simulated(t, "1f1b", schedule.Request{Ranks: 64, Micros: 1024, Costs: schedule.DefaultCosts()})
	var out bytes.Buffer
	if err := WriteSVG(&out, s, tl, schedule.DefaultCosts()); err != nil || out.Len() > 16<<20 {
		t.Errorf("%d bytes, %v", out.Len(), err)
	}
}

func simulated(t *testing.T, name string, q schedule.Request) (*schedule.Schedule, *schedule.Timeline) {
	t.Helper()
	s, err := schedule.Generate(name, q)
	if err != nil {
		t.Fatalf("%s %+v: %v", name, q, err)
	}
	tl, err := s.Simulate(q.Costs)
	if err != nil {
		t.Fatalf("%s %+v: %v", name, q, err)
	}
	return s, tl
}
