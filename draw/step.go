package draw

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
)

// Bounds of what a page is given to draw: of more it would show no more.
const (
	mostBoxes = 6000 // per tier
	stepWide  = 4000 // pixels at which consecutive instructions are told apart
	mostRanks = 16
)

// Step is one step of some ranks as data for an interactive picture: what Timeline and Memory draw, and stalls. Times
// are seconds, sizes bytes.
type Step struct {
	Works   []Colour `json:"works"`   // kinds of work, by number
	Classes []Colour `json:"classes"` // of buffers, by number
	Runs    []Ran    `json:"runs"`
	Omitted int      `json:"omitted_ranks,omitempty"`
}

// Colour is a name in a legend.
type Colour struct {
	Name   string `json:"name"`
	Colour string `json:"colour"`
}

// Ran is one rank's step, predicted or measured.
type Ran struct {
	Name     string      `json:"name"`
	Rank     int         `json:"rank"`
	Makespan float64     `json:"seconds"`
	Streams  []StreamRow `json:"streams"`
	Tiers    []TierMap   `json:"tiers"`
}

// StreamRow is what one stream does.
type StreamRow struct {
	Name   string  `json:"name"`
	Busy   float64 `json:"busy_seconds"`
	Blocks []Block `json:"blocks"`
	Stalls []Stall `json:"stalls,omitempty"` // of the compute stream
}

// Block is a run of instructions that do the same kind of work.
type Block struct {
	Start float64 `json:"s"`
	End   float64 `json:"e"`
	Work  int     `json:"w"`
	Text  string  `json:"t"`
}

// TierMap is what is where in a tier, and when.
type TierMap struct {
	Name    string                    `json:"name"`
	Height  int64                     `json:"planned_bytes"` // of the packing
	Peak    int64                     `json:"reached_bytes"` // the end of the highest buffer in use
	Most    [program.NumClasses]int64 `json:"most_bytes"`    // of each class at any time
	Boxes   []Box                     `json:"boxes"`
	Omitted int                       `json:"omitted_boxes,omitempty"` // the smallest by area
}

// Box is a buffer from its first to its last use.
type Box struct {
	Start float64 `json:"s"`
	End   float64 `json:"e"`
	Addr  int64   `json:"a"`
	Size  int64   `json:"n"`
	Class int     `json:"c"`
	Text  string  `json:"t"`
}

// WriteStep writes the runs as JSON, a Step.
func WriteStep(w io.Writer, runs ...Run) error { return json.NewEncoder(w).Encode(NewStep(runs...)) }

// NewStep returns the runs as data.
func NewStep(runs ...Run) *Step {
	s := &Step{}
	for i, colour := range dirColours {
		s.Works = append(s.Works, Colour{dirWords[i], colour})
	}
	for class, colour := range classColours {
		s.Classes = append(s.Classes, Colour{program.Class(class).String(), colour})
	}
	if n := len(runs) - 2*mostRanks; n > 0 {
		s.Omitted = n
		runs = runs[:2*mostRanks]
	}
	for _, r := range runs {
		s.Runs = append(s.Runs, r.ran())
	}
	return s
}

func (r Run) ran() Ran {
	v := Ran{Name: r.Name, Rank: r.Program.Rank, Makespan: r.Timeline.Makespan}
	for _, s := range used(r) {
		row := StreamRow{Name: s.String(), Busy: r.Timeline.Busy[s], Blocks: r.blocks(s)}
		if s == device.Compute {
			row.Stalls = r.Stalls(s)
		}
		v.Streams = append(v.Streams, row)
	}
	for tier := range device.NumTiers {
		if r.Program.Height[tier] > 0 {
			v.Tiers = append(v.Tiers, r.tier(tier))
		}
	}
	return v
}

// blocks merges a stream's consecutive instructions of one kind that a picture could not tell apart.
func (r Run) blocks(s device.Stream) (list []Block) {
	least := r.Timeline.Makespan / stepWide
	for i, span := range r.Timeline.Spans {
		in := &r.Program.Instrs[i]
		if in.Stream != s {
			continue
		}
		b := Block{span.Start, span.End, int(in.Key.Dir), fmt.Sprintf("i%d %s, %s", i, label(r.Program, i), work(in.Key))}
		if n := len(list); n > 0 {
			last := &list[n-1]
			if last.Work == b.Work && b.Start-last.End < least && (b.End-b.Start < least || last.End-last.Start < least) {
				last.End, last.Text = b.End, "... "+b.Text
				continue
			}
		}
		list = append(list, b)
	}
	return list
}

// tier returns the map of a tier.
func (r Run) tier(t device.Tier) TierMap {
	m := TierMap{Name: t.String(), Height: r.Program.Height[t], Peak: r.Timeline.Peak[t]}
	first, last := uses(r.Program)
	for b, life := range r.Timeline.Lives(r.Program) {
		buf := &r.Program.Buffers[b]
		if buf.Tier != t || life.End < life.Start {
			continue
		}
		m.Boxes = append(m.Boxes, Box{life.Start, life.End, buf.Addr, buf.Size, int(buf.Class),
			fmt.Sprintf("%s; from%s to%s", buf.Name, because(r.Program, first[b]), because(r.Program, last[b]))})
	}
	m.Most = mostLive(m.Boxes)
	if n := len(m.Boxes) - mostBoxes; n > 0 {
		area := func(b Box) float64 { return (b.End - b.Start) * float64(b.Size) }
		slices.SortStableFunc(m.Boxes, func(a, b Box) int { return cmp.Compare(area(b), area(a)) })
		m.Boxes, m.Omitted = m.Boxes[:mostBoxes], n
	}
	return m
}

// mostLive returns the most bytes of each class that are live at once.
func mostLive(boxes []Box) (most [program.NumClasses]int64) {
	type change struct {
		at    float64
		class int
		bytes int64
	}
	var list []change
	for _, b := range boxes {
		list = append(list, change{b.Start, b.Class, b.Size}, change{b.End, b.Class, -b.Size})
	}
	slices.SortStableFunc(list, func(a, b change) int { // what ends makes room for what begins
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.bytes, b.bytes))
	})
	var live [program.NumClasses]int64
	for _, c := range list {
		live[c.class] += c.bytes
		most[c.class] = max(most[c.class], live[c.class])
	}
	return most
}
