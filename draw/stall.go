package draw

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/device"
)

// Stall is a time in which a stream waits for another one.
type Stall struct {
	Start float64 `json:"s"`
	End   float64 `json:"e"`
	On    string  `json:"on"` // the stream that it waits for: the one that is busy, or slow to begin
	Text  string  `json:"t"`
}

// Stalls returns when a stream waits for others, for at least a thousandth of the step each: the time from its previous
// instruction to the end of what it then waits for, on the stream that lets it wait longest. As long as that one waits itself, the stall is
// on the stream that it waits for, and so on:
//
//	compute      ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒█████    stalls on d2h, on the host, on h2d
//	d2h      █████████
//	host              ████
//	h2d                   ██████
func (r Run) Stalls(s device.Stream) (list []Stall) {
	idle, least := 0.0, r.Timeline.Makespan/1000
	before := r.before()
	for i, span := range r.Timeline.Spans {
		in := &r.Program.Instrs[i]
		if in.Stream != s {
			continue
		}
		if span.Start-idle > least && len(in.Waits) > 0 {
			last := slices.MaxFunc(in.Waits, r.byEnd)
			if end := min(r.Timeline.Spans[last].End, span.Start); end-idle > least {
				list = append(list, r.chain(i, last, idle, end, before)...)
			}
		}
		idle = max(idle, span.End)
	}
	return list
}

// byEnd orders instructions by when they end.
func (r Run) byEnd(a, b int) int {
	return cmp.Compare(r.Timeline.Spans[a].End, r.Timeline.Spans[b].End)
}

// before returns the instruction before each on its stream; -1: none is.
func (r Run) before() []int {
	var last [device.NumStreams]int
	for s := range last {
		last[s] = -1
	}
	list := make([]int, len(r.Program.Instrs))
	for i := range r.Program.Instrs {
		s := r.Program.Instrs[i].Stream
		list[i], last[s] = last[s], i
	}
	return list
}

// chain divides the time in which instruction i waits for another among the streams that let it wait.
func (r Run) chain(i, last int, idle, end float64, before []int) (list []Stall) {
	text := fmt.Sprintf("i%d %s waits for i%d %s", i, r.Program.Instrs[i].Op, last, label(r.Program, last))
	for at := last; end > idle; {
		next := before[at]
		for _, w := range r.Program.Instrs[at].Waits {
			if next < 0 || r.byEnd(w, next) > 0 {
				next = w
			}
		}
		start := idle // what nothing held up is slow to begin
		if next >= 0 {
			start = min(end, max(idle, r.Timeline.Spans[next].End))
		}
		on := r.Program.Instrs[at].Stream.String()
		if n := len(list); n > 0 && list[n-1].On == on {
			list[n-1].Start = start
		} else if start < end {
			s := Stall{start, end, on, text}
			if at != last {
				s.Text += fmt.Sprintf(", and that for i%d %s", at, label(r.Program, at))
			}
			list = append(list, s)
		}
		at, end = next, start
	}
	slices.Reverse(list)
	return list
}
