package sim

import (
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// Timeline is one step of a program in time, predicted or measured. Times are seconds
// since the start of the step, sizes are bytes. It prints as JSON and parses back to
// the same value.
type Timeline struct {
	Spans    []device.Span // by instruction
	Makespan float64       // end of the last instruction
	// Busy is the time during which a stream executes.
	Busy [device.NumStreams]float64
	// Moved counts the bytes copied, by tier of source and destination.
	Moved [device.NumTiers][device.NumTiers]int64
	// Network is the number of bytes received from other ranks.
	Network int64
	// Live is the sum of the sizes of the live buffers over time, per tier.
	Live [device.NumTiers][]alloc.Level
	// Peak is the end of the highest buffer that the step uses, per tier.
	Peak [device.NumTiers]int64
	// Critical is a chain of this rank's instructions, first to last, that determines
	// the makespan. Each one's predecessor is, among this rank's instructions that it
	// depended on, the last to end. Waits for peers are not shown.
	Critical []int
}

// New derives a Timeline from the spans of a program's instructions.
func New(p *program.Program, spans []device.Span) (*Timeline, error) {
	return since(p, spans, begin(spans))
}

// NewAll derives the Timelines of programs that ran together on synchronised clocks.
// Times count from the earliest start of any.
func NewAll(programs []*program.Program, spans [][]device.Span) ([]*Timeline, error) {
	if len(spans) != len(programs) {
		return nil, fmt.Errorf("timeline: spans of %d ranks for %d programs", len(spans), len(programs))
	}
	first := math.Inf(1)
	for _, s := range spans {
		first = min(first, begin(s))
	}
	list := make([]*Timeline, len(programs))
	for r, p := range programs {
		var err error
		if list[r], err = since(p, spans[r], first); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// begin returns the earliest start of spans.
func begin(spans []device.Span) float64 {
	first := math.Inf(1)
	for _, s := range spans {
		first = min(first, s.Start)
	}
	return first
}

// since derives a Timeline whose times count from first.
func since(p *program.Program, spans []device.Span, first float64) (*Timeline, error) {
	if len(spans) != len(p.Instrs) {
		return nil, fmt.Errorf("timeline: %d spans for %d instructions", len(spans), len(p.Instrs))
	}
	t := &Timeline{Spans: slices.Clone(spans)}
	for i := range t.Spans {
		s := &t.Spans[i]
		s.Start, s.End = s.Start-first, s.End-first
		t.Makespan = max(t.Makespan, s.End)
		in := &p.Instrs[i]
		t.Busy[in.Stream] += s.End - s.Start
		switch {
		case in.Op == graph.Copy:
			dst, src := p.Operand(in.Args[graph.CopyDst]), p.Operand(in.Args[graph.CopySrc])
			t.Moved[src.Tier][dst.Tier] += src.Bytes()
		case in.Op.Info().Between:
			c := p.Call(i)
			t.Network += device.Received(&c, p.Rank)
		}
	}
	t.levels(p)
	t.Critical = t.critical(p)
	return t, nil
}

// Peaks returns the largest number of live bytes per tier.
func (t *Timeline) Peaks() (peak [device.NumTiers]int64) {
	for tier := range t.Live {
		peak[tier] = alloc.Most(t.Live[tier])
	}
	return peak
}

// levels fills Live and Peak. A buffer is live from the first start to the last end of
// the instructions that access it.
func (t *Timeline) levels(p *program.Program) {
	var changes [device.NumTiers][]alloc.Level
	for b, life := range t.Lives(p) {
		buf := &p.Buffers[b]
		if life.End < life.Start {
			continue // never used
		}
		changes[buf.Tier] = append(changes[buf.Tier], alloc.Level{Time: life.Start, Bytes: buf.Size}, alloc.Level{Time: life.End, Bytes: -buf.Size})
		t.Peak[buf.Tier] = max(t.Peak[buf.Tier], buf.Addr+buf.Size)
	}
	for tier, list := range changes {
		t.Live[tier] = alloc.Levels(list)
	}
}

// Lives returns when each buffer of the program is live; End < Start if never.
func (t *Timeline) Lives(p *program.Program) []device.Span {
	lives := make([]device.Span, len(p.Buffers))
	for b := range lives {
		lives[b] = device.Span{Start: math.Inf(1), End: math.Inf(-1)}
		if p.Buffers[b].Persistent {
			lives[b] = device.Span{Start: 0, End: t.Makespan}
		}
	}
	for i := range p.Instrs {
		for _, r := range p.Instrs[i].Args {
			if !r.Absent() {
				l := &lives[r.Buf]
				l.Start, l.End = min(l.Start, t.Spans[i].Start), max(l.End, t.Spans[i].End)
			}
		}
	}
	return lives
}

// critical walks back from the last instruction to end, each time to the latest of its
// dependencies.
func (t *Timeline) critical(p *program.Program) []int {
	if len(t.Spans) == 0 {
		return nil
	}
	before := make([]int, len(p.Instrs)) // on the same stream
	var tail [device.NumStreams]int
	for s := range tail {
		tail[s] = -1
	}
	last := 0
	for i := range p.Instrs {
		before[i] = tail[p.Instrs[i].Stream]
		tail[p.Instrs[i].Stream] = i
		if t.Spans[i].End > t.Spans[last].End {
			last = i
		}
	}
	var chain []int
	for i := last; i >= 0 && len(chain) < len(t.Spans); {
		chain = append(chain, i)
		next := before[i]
		for _, w := range p.Instrs[i].Waits {
			if w >= 0 && w < len(t.Spans) && (next < 0 || t.Spans[w].End > t.Spans[next].End) {
				next = w
			}
		}
		i = next
	}
	slices.Reverse(chain)
	return chain
}
