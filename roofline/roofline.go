// Package roofline says what each kind of call in a step is bound by, and what faster parts of the machine would bring
// (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009; Gholami et al., "AI and Memory Wall", 2403.14123).
//
// The intensity of a call is its FLOPs by the bytes that it has to move. Below the ridge of a processor, the FLOPs that it
// does in the time of a byte, memory is the limit; above it, arithmetic is. An A100 has its ridge at 153 FLOP/B: a product
// of one token with 4096 x 4096 weights in bf16 has 1, of 1024 tokens 683.
//
// What a faster part would bring is simulated, not added up: copies that hide behind computing bring nothing.
package roofline

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
)

// Kind is all calls of an operator on a stream in a step of one rank.
type Kind struct {
	Name      string  `json:"name"`
	Stream    string  `json:"stream"`
	Calls     int     `json:"calls"`
	FLOPs     int64   `json:"flops"`
	Bytes     int64   `json:"bytes"`     // to and from the memory of its tier, or over its link
	Intensity float64 `json:"intensity"` // FLOPs per byte; 0: it computes nothing
	Seconds   float64 `json:"seconds"`   // busy
	Share     float64 `json:"share"`     // of the step
	Bound     string  `json:"bound"`     // arithmetic, memory, overhead, or the stream of a link
}

// Ridge is an engine's limit.
type Ridge struct {
	Stream    string  `json:"stream"`
	DType     string  `json:"dtype"`
	Peak      float64 `json:"peak"`      // FLOP/s
	Bandwidth float64 `json:"bandwidth"` // bytes/s
	Ridge     float64 `json:"ridge"`     // FLOPs per byte
}

// Gain is what a part of the machine that is twice as fast would bring.
type Gain struct {
	Part    string  `json:"part"`
	Seconds float64 `json:"step_seconds"`
	Saved   float64 `json:"saved"` // share of the step
}

// Report is all of it.
type Report struct {
	Machine string  `json:"machine"`
	Seconds float64 `json:"step_seconds"`
	Kinds   []Kind  `json:"kinds"` // those that take longest first
	Ridges  []Ridge `json:"ridges"`
	Gains   []Gain  `json:"gains"` // of twice the rate, the greatest first
}

// Analyse looks at a step of programs that a machine has priced: those of the distinct ranks, of all ranks.
func Analyse(programs []*program.Program, ranks int, h *hardware.Hardware) (*Report, error) {
	r := &Report{Machine: h.Name, Ridges: ridges(h)}
	spans, seconds, err := simulate(programs, ranks, h)
	if err != nil {
		return nil, err
	}
	r.Seconds = seconds
	r.Kinds = kinds(programs[0], spans[0], h, seconds)
	for _, part := range parts {
		_, faster, err := simulate(programs, ranks, quicker{h, part.quicken(h)})
		if err != nil {
			return nil, err
		}
		if saved := 1 - faster/seconds; saved > 1e-4 {
			r.Gains = append(r.Gains, Gain{part.name, faster, saved})
		}
	}
	slices.SortStableFunc(r.Gains, func(a, b Gain) int { return cmp.Compare(b.Saved, a.Saved) })
	return r, nil
}

// simulate returns when each instruction runs, and how long the step takes.
func simulate(programs []*program.Program, ranks int, cost sim.Coster) (spans [][]device.Span, seconds float64, err error) {
	if len(programs) == 1 {
		one, err := sim.SpansAlike(programs[0], ranks, cost)
		if err != nil {
			return nil, 0, err
		}
		spans = [][]device.Span{one}
	} else if spans, err = sim.SpansFirst(programs, ranks, cost); err != nil {
		return nil, 0, err
	}
	first := math.Inf(1)
	for _, list := range spans {
		for _, s := range list {
			first, seconds = min(first, s.Start), max(seconds, s.End)
		}
	}
	return spans, seconds - min(first, seconds), nil
}

// part is a part of a machine that could be faster.
type part struct {
	name    string
	quicken func(h *hardware.Hardware) *hardware.Hardware
}

// parts are what twice as fast is asked of.
var parts = [...]part{
	{"arithmetic of the device", engines(device.Compute, func(e *hardware.Engine) {
		e.Peak = hardware.Rate{F32: 2 * e.Peak.F32, BF16: 2 * e.Peak.BF16, FP8: 2 * e.Peak.FP8}
	})},
	{"memory of the device", engines(device.Compute, func(e *hardware.Engine) { e.Bandwidth *= 2 })},
	{"overhead of the device's calls", engines(device.Compute, func(e *hardware.Engine) { e.Overhead /= 2 })},
	{"arithmetic of the host", engines(device.HostCompute, func(e *hardware.Engine) { e.Peak.F32, e.Peak.BF16 = 2*e.Peak.F32, 2*e.Peak.BF16 })},
	{"memory of the host", engines(device.HostCompute, func(e *hardware.Engine) { e.Bandwidth *= 2 })},
	{"links between host and device", links(device.HostToDev, device.DevToHost)},
	{"disk", links(device.DiskRead, device.DiskWrite)},
	{"links between ranks", links(device.Recv)},
}

// engines returns a change of the engine of a stream.
func engines(s device.Stream, change func(e *hardware.Engine)) func(h *hardware.Hardware) *hardware.Hardware {
	return func(h *hardware.Hardware) *hardware.Hardware {
		q := *h
		q.Engines = slices.Clone(h.Engines)
		if e := q.Engine(s); e != nil {
			change(e)
		}
		return &q
	}
}

// links returns a change of links.
func links(streams ...device.Stream) func(h *hardware.Hardware) *hardware.Hardware {
	return func(h *hardware.Hardware) *hardware.Hardware { return h.Quicker(2, streams...) }
}

// quicker prices calls as a machine does, times what a change would make of the price if nothing had been measured: so
// measured times count, although no faster machine has been measured.
type quicker struct {
	*hardware.Hardware
	changed *hardware.Hardware
}

// Cost returns the seconds that a call takes.
func (q quicker) Cost(c *device.Call) float64 {
	seconds, now := q.Hardware.Cost(c), q.Parts(c).Seconds()
	if now == 0 || math.IsInf(now, 0) {
		return seconds
	}
	return seconds * q.changed.Parts(c).Seconds() / now
}

// kinds adds up the calls of a program by operator and stream.
func kinds(p *program.Program, spans []device.Span, h *hardware.Hardware, step float64) []Kind {
	type sum struct {
		Kind
		parts hardware.Parts
	}
	var list []*sum
	var dims []graph.Dim
	var args []device.Operand
	for i := range p.Instrs {
		in := &p.Instrs[i]
		c := p.CallIn(args[:0], i)
		args = c.Args
		name := in.Op.String()
		at := slices.IndexFunc(list, func(s *sum) bool { return s.Name == name && s.Stream == in.Stream.String() })
		if at < 0 {
			at = len(list)
			list = append(list, &sum{Kind: Kind{Name: name, Stream: in.Stream.String()}})
		}
		k, q := list[at], h.Parts(&c)
		dims = p.Dims(in, dims)
		k.Calls++
		k.FLOPs += c.Op.FLOPs(&c.Attr, dims)
		k.Bytes += moved(&c, dims, p.Rank)
		k.Seconds += spans[i].End - spans[i].Start
		k.parts.Arithmetic, k.parts.Memory, k.parts.Overhead, k.parts.Link = k.parts.Arithmetic+q.Arithmetic, k.parts.Memory+q.Memory+q.Trailing, k.parts.Overhead+q.Overhead, k.parts.Link+q.Link
	}
	var out []Kind
	for _, s := range list {
		if s.Bytes > 0 {
			s.Intensity = float64(s.FLOPs) / float64(s.Bytes)
		}
		s.Share, s.Bound = s.Seconds/max(step, 1e-300), bound(s.Stream, s.parts)
		out = append(out, s.Kind)
	}
	slices.SortStableFunc(out, func(a, b Kind) int { return cmp.Compare(b.Seconds, a.Seconds) })
	return out
}

// moved returns the bytes that a call moves: over a link once, in memory as the operator says.
func moved(c *device.Call, dims []graph.Dim, rank int) int64 {
	switch {
	case c.Op.Info().Between:
		return device.Received(c, rank)
	case c.Op == graph.Copy && c.Args[graph.CopyDst].Tier != c.Args[graph.CopySrc].Tier:
		return c.Args[graph.CopyDst].Bytes()
	}
	return c.Op.Bytes(&c.Attr, dims) + c.Op.TrailingBytes(&c.Attr, dims)
}

// bound names the greatest part.
func bound(stream string, p hardware.Parts) string {
	name, most := "arithmetic", p.Arithmetic
	for _, q := range []struct {
		name string
		x    float64
	}{{"memory", p.Memory}, {"overhead", p.Overhead}, {stream, p.Link}} {
		if q.x > most {
			name, most = q.name, q.x
		}
	}
	return name
}

// ridges returns the limits of a machine's engines.
func ridges(h *hardware.Hardware) (list []Ridge) {
	for _, e := range h.Engines {
		for _, t := range []struct {
			name string
			peak float64
		}{{"fp32", e.Peak.F32}, {"bf16", e.Peak.BF16}} {
			if t.peak > 0 && e.Bandwidth > 0 {
				list = append(list, Ridge{e.Stream.String(), t.name, t.peak, e.Bandwidth, t.peak / e.Bandwidth})
			}
		}
	}
	return list
}

// String says what an engine can do.
func (r Ridge) String() string {
	return fmt.Sprintf("%s %s: ridge at %.4g FLOP/B", r.Stream, r.DType, r.Ridge)
}
