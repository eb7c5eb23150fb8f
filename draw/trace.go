package draw

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"github.com/athanor-llm/athanor/device"
)

// event is an element of the Trace Event Format, a JSON array that Perfetto and
// chrome://tracing read. Times are in microseconds.
type event struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	Time  float64        `json:"ts"`
	Dur   *float64       `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	ID    int            `json:"id,omitempty"`
	Bind  string         `json:"bp,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// Trace writes the runs as processes, their streams as threads, with the live bytes
// of each tier as counters. arrows adds an arrow for each wait, which viewers are
// slow to draw for long programs.
func Trace(w io.Writer, arrows bool, runs ...Run) error {
	t := &tracer{out: bufio.NewWriter(w)}
	for pid, r := range runs {
		t.head(pid, r)
		t.instructions(pid, r)
		if arrows {
			t.waits(pid, r)
		}
		t.counters(pid, r)
	}
	if t.events == 0 {
		t.out.WriteString("[")
	}
	t.out.WriteString("\n]\n")
	if t.err != nil {
		return t.err
	}
	return t.out.Flush()
}

type tracer struct {
	out    *bufio.Writer
	events int
	arrows int
	err    error
}

func (t *tracer) emit(e event) {
	text, err := json.Marshal(e)
	if err != nil && t.err == nil {
		t.err = fmt.Errorf("trace: %w", err)
	}
	sep := ",\n"
	if t.events == 0 {
		sep = "[\n"
	}
	t.events++
	t.out.WriteString(sep)
	t.out.Write(text)
}

// head names the process and its threads.
func (t *tracer) head(pid int, r Run) {
	t.emit(event{Name: "process_name", Phase: "M", PID: pid, Args: map[string]any{"name": r.title()}})
	for s := range device.NumStreams {
		if r.Timeline.Busy[s] > 0 {
			t.emit(event{Name: "thread_name", Phase: "M", PID: pid, TID: int(s), Args: map[string]any{"name": s.String()}})
		}
	}
}

func (t *tracer) instructions(pid int, r Run) {
	for i, s := range r.Timeline.Spans {
		in := &r.Program.Instrs[i]
		dur := (s.End - s.Start) * 1e6
		args := map[string]any{"id": i, "work": work(in.Key)}
		if len(in.Waits) > 0 {
			args["waits"] = in.Waits
		}
		t.emit(event{
			Name: label(r.Program, i), Cat: in.Key.Dir.String(), Phase: "X", Time: s.Start * 1e6, Dur: &dur,
			PID: pid, TID: int(in.Stream), Args: args,
		})
	}
}

// waits draws an arrow from each awaited instruction to the start of the one that
// waits. The arrow begins in the middle of its slice: viewers attach it to whichever
// slice runs at that time, and at the end that may be the next one.
func (t *tracer) waits(pid int, r Run) {
	for i := range r.Program.Instrs {
		in := &r.Program.Instrs[i]
		for _, w := range in.Waits {
			t.arrows++
			from := r.Timeline.Spans[w]
			t.emit(event{Name: "wait", Cat: "wait", Phase: "s", Time: (from.Start + from.End) / 2 * 1e6, PID: pid, TID: int(r.Program.Instrs[w].Stream), ID: t.arrows})
			t.emit(event{Name: "wait", Cat: "wait", Phase: "f", Bind: "e", Time: r.Timeline.Spans[i].Start * 1e6, PID: pid, TID: int(in.Stream), ID: t.arrows})
		}
	}
}

func (t *tracer) counters(pid int, r Run) {
	for tier, levels := range r.Timeline.Live {
		for _, l := range levels {
			t.emit(event{Name: "live on " + device.Tier(tier).String(), Phase: "C", Time: l.Time * 1e6, PID: pid, Args: map[string]any{"bytes": l.Bytes}})
		}
	}
}
