package draw

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// example returns a program of n copies to the device, each followed by an operator
// on the copy; the copies alternate between two places on the device.
func example(t *testing.T, n int) Run {
	t.Helper()
	p := &program.Program{Height: [device.NumTiers]int64{8192, 4096 * int64(n), 0}}
	for i := range n {
		p.Buffers = append(p.Buffers,
			program.Buffer{Name: "source <&\"" + strconv.Itoa(i), Tier: device.HostTier, Rows: 1, Cols: 1024, Size: 4096, Addr: 4096 * int64(i), Persistent: true},
			program.Buffer{Name: "place " + strconv.Itoa(i), Tier: device.DeviceTier, Rows: 1, Cols: 1024, Size: 4096, Addr: 4096 * int64(i%2), Class: program.ClassActivations})
		on := func(b int) program.Region { return program.Region{Buf: b, Rows: 1, Cols: 1024, Stride: 1024} }
		up := program.Instr{Op: graph.Copy, Stream: device.HostToDev, Args: []program.Region{on(2*i + 1), on(2 * i)}, Key: program.Key{Segment: -1, Micro: -1, Chunk: i, Dir: program.Transfer}}
		if i > 1 {
			up.Waits = []int{2*(i-2) + 1}
		}
		p.Instrs = append(p.Instrs, up, program.Instr{Op: graph.Add, Args: []program.Region{on(2*i + 1), on(2*i + 1)}, Waits: []int{2 * i}, Key: program.Key{Segment: i, Micro: 0, Chunk: -1}})
	}
	tl, err := sim.Run(p, sim.CostFunc(func(c *device.Call) float64 { return 1 + float64(c.Op)/100 }))
	if err != nil {
		t.Fatal(err)
	}
	return Run{Name: "predicted", Program: p, Timeline: tl}
}

// TestTrace: the trace is JSON, has each instruction once with its times, one pair
// of arrow ends per wait, and counters of the live bytes.
func TestTrace(t *testing.T) {
	r := example(t, 7)
	other := r
	other.Name = "measured"
	var b bytes.Buffer
	if err := Trace(&b, true, r, other); err != nil {
		t.Fatal(err)
	}
	var events []event
	if err := json.Unmarshal(b.Bytes(), &events); err != nil {
		t.Fatalf("%v in %s", err, b.Bytes())
	}
	for pid := range 2 {
		seen := map[float64]bool{}
		ends := map[int]int{}
		waits := 0
		counters := map[string][]event{}
		for _, e := range events {
			if e.PID != pid {
				continue
			}
			switch e.Phase {
			case "X":
				i := e.Args["id"].(float64)
				s := r.Timeline.Spans[int(i)]
				if seen[i] || e.Time != s.Start*1e6 || math.Abs(*e.Dur-(s.End-s.Start)*1e6) > 1e-6 || e.TID != int(r.Program.Instrs[int(i)].Stream) {
					t.Errorf("instruction %v: %+v, want %v", i, e, s)
				}
				seen[i] = true
			case "s":
				ends[e.ID]++
			case "f":
				ends[e.ID]--
				waits++
			case "C":
				counters[e.Name] = append(counters[e.Name], e)
			}
		}
		want := 0
		for _, in := range r.Program.Instrs {
			want += len(in.Waits)
		}
		if len(seen) != len(r.Program.Instrs) || waits != want {
			t.Errorf("process %d: %d instructions and %d arrows, want %d and %d", pid, len(seen), waits, len(r.Program.Instrs), want)
		}
		for id, n := range ends {
			if n != 0 {
				t.Errorf("arrow %d has %+d ends", id, n)
			}
		}
		c := counters["live on device"]
		most := 0.0
		for _, e := range c {
			most = max(most, e.Args["bytes"].(float64))
		}
		if most != 8192 || c[len(c)-1].Args["bytes"].(float64) != 0 {
			t.Errorf("the counter reaches %v and ends at %v", most, c[len(c)-1])
		}
	}
	b.Reset()
	if err := Trace(&b, false); err != nil || json.Unmarshal(b.Bytes(), &events) != nil {
		t.Errorf("an empty trace is no JSON: %s", b.Bytes())
	}
}

// box is a rectangle with a title, parsed from a picture.
type box struct {
	X      float64 `xml:"x,attr"`
	Y      float64 `xml:"y,attr"`
	Width  float64 `xml:"width,attr"`
	Height float64 `xml:"height,attr"`
	Title  string  `xml:"title"`
}

// boxes parses a picture strictly.
func boxes(t *testing.T, picture []byte) (list []box) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(picture))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, picture)
		}
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "rect" && start.Attr[0].Name.Local == "x" {
			var b box
			if err := d.DecodeElement(&b, &start); err != nil {
				t.Fatal(err)
			}
			if b.Title != "" {
				list = append(list, b)
			}
		}
	}
}

// TestTimeline: there is one rectangle per instruction if they are wide enough to
// see, otherwise few, and none overlap within a row.
func TestTimeline(t *testing.T) {
	for _, n := range []int{1, 20, 20000} {
		r := example(t, n)
		var b bytes.Buffer
		if err := Timeline(&b, r, r); err != nil {
			t.Fatal(err)
		}
		list := boxes(t, b.Bytes())
		if n < 1000 && len(list) != 2*len(r.Program.Instrs) || len(list) > 4*width/hairline*4 {
			t.Errorf("%d rectangles for %d instructions", len(list), len(r.Program.Instrs))
		}
		right := map[float64]float64{}
		for _, x := range list {
			if x.X < right[x.Y]-0.002 || x.X+x.Width > leftside+width+0.002 {
				t.Fatalf("%+v begins before %v or sticks out", x, right[x.Y])
			}
			right[x.Y] = x.X + x.Width
		}
	}
}

// TestMemory: the rectangles of a correct program do not overlap, they are inside
// the picture, and names survive escaping.
func TestMemory(t *testing.T) {
	r := example(t, 9)
	for tier, want := range []int{9, 9, 0} {
		var b bytes.Buffer
		if err := Memory(&b, r, device.Tier(tier)); err != nil {
			t.Fatal(err)
		}
		list := boxes(t, b.Bytes())
		if len(list) != want {
			t.Errorf("%d rectangles on tier %d, want %d", len(list), tier, want)
		}
		for i, x := range list {
			if x.Y < headTall-0.01 || x.Y+x.Height > headTall+mapTall+0.01 {
				t.Errorf("%+v sticks out", x)
			}
			for _, y := range list[:i] {
				const eps = 0.01
				if x.X+eps < y.X+y.Width && y.X+eps < x.X+x.Width && x.Y+eps < y.Y+y.Height && y.Y+eps < x.Y+x.Height {
					t.Errorf("%+v and %+v overlap", x, y)
				}
			}
		}
		if tier == int(device.HostTier) && !strings.HasPrefix(list[3].Title, "weights source <&\"3: 4 KiB at 12288; from 0 us (copy chunk 3) to ") {
			t.Errorf("title is %q", list[3].Title)
		}
	}
}

type full struct{ left int }

func (f *full) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

// TestHTML: pages are complete, and a full disk is an error wherever it occurs.
func TestHTML(t *testing.T) {
	r := example(t, 40)
	var b bytes.Buffer
	if err := HTML(&b, "a <b>", r); err != nil {
		t.Fatal(err)
	}
	if page := b.String(); strings.Count(page, "<svg") != 3 || strings.Count(page, "</svg>") != 3 || !strings.Contains(page, "a &lt;b&gt;") || !strings.HasSuffix(page, "</html>\n") {
		t.Errorf("page is\n%s", page)
	}
	for left := 0; left < b.Len(); left += 997 {
		if HTML(&full{left}, "a <b>", r) == nil {
			t.Errorf("no error on a disk with %d bytes", left)
		}
		if Trace(&full{left % 3000}, true, r) == nil {
			t.Error("no error from a trace on a full disk")
		}
	}
}
