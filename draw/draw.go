// Package draw renders timelines of programs: traces for the Perfetto and
// chrome://tracing viewers, timelines and memory maps as SVG, and an HTML page of
// both. It draws timelines predicted by package sim and measured by package exec
// alike, one below the other if given both.
//
//	trace.go     every instruction as a slice, waits as arrows, live bytes as
//	             counters; for zooming in
//	timeline.go  a row per stream; for seeing where the time goes
//	memory.go    time to the right, addresses up, a rectangle per buffer: the
//	             packing as the allocator sees it, stretched to real time
//
// The output contains no scripts, and all names are escaped.
package draw

import (
	"bufio"
	"fmt"
	"html"
	"io"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// Predicted is the name of a run that is the plan's prediction.
const Predicted = "predicted"

// Run is a program and one of its timelines.
type Run struct {
	Name     string // Predicted, or such as "measured at step 2"
	Program  *program.Program
	Timeline *sim.Timeline
	Several  bool // it is one of several ranks, so memory maps name the rank
}

// title returns the heading of a run.
func (r Run) title() string { return fmt.Sprintf("rank %d, %s", r.Program.Rank, r.Name) }

// label returns an instruction's operator and the buffer that it writes.
func label(p *program.Program, i int) string {
	in := &p.Instrs[i]
	if len(in.Args) == 0 {
		return in.Op.String()
	}
	return in.Op.String() + " " + p.Buffers[in.Args[0].Buf].Name
}

// work describes the work that an instruction belongs to, without absent indices.
func work(k program.Key) string {
	s := k.Dir.String()
	for _, part := range []struct {
		name string
		n    int
	}{{"segment", k.Segment}, {"micro-batch", k.Micro}, {"chunk", k.Chunk}} {
		if part.n >= 0 {
			s += fmt.Sprintf(" %s %d", part.name, part.n)
		}
	}
	return s
}

// Colours that people with common forms of colour blindness can distinguish (Okabe
// and Ito, "Color Universal Design", 2008), lightened.
var (
	dirColours = [...]string{
		program.Forward: "#56b4e9", program.Backward: "#e69f00", program.Recompute: "#f0e442",
		program.Optimizer: "#cc79a7", program.Transfer: "#66c2a5",
	}
	dirWords = [...]string{
		program.Forward: "forward", program.Backward: "backward", program.Recompute: "recomputed",
		program.Optimizer: "optimizer", program.Transfer: "copies",
	}
	classColours = [program.NumClasses]string{
		program.ClassWeights: "#56b4e9", program.ClassFrozen: "#0072b2", program.ClassGrads: "#e69f00", program.ClassState: "#cc79a7",
		program.ClassActivations: "#66c2a5", program.ClassActGrads: "#f0e442",
		program.ClassInputs: "#999999", program.ClassReductions: "#d55e00",
	}
)

// HTML writes a page with the timelines and memory maps of the runs.
func HTML(w io.Writer, title string, runs ...Run) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>%[1]s</title></head>\n<body style=\"font-family:sans-serif\">\n<h1>%[1]s</h1>\n", html.EscapeString(title))
	if err := Timeline(out, runs...); err != nil {
		return err
	}
	for _, r := range runs {
		for tier := range device.NumTiers {
			if r.Program.Height[tier] == 0 {
				continue
			}
			fmt.Fprintf(out, "<h2>%s: %s tier</h2>\n", html.EscapeString(r.title()), tier)
			if err := Memory(out, r, tier); err != nil {
				return err
			}
		}
	}
	fmt.Fprintln(out, "</body></html>")
	return out.Flush()
}

// size formats a number of bytes in a readable unit.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	x, u := float64(n), 0
	for x >= 1024 && u < len(units)-1 {
		x, u = x/1024, u+1
	}
	return fmt.Sprintf("%.4g %s", x, units[u])
}
