package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/draw"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/search"
)

type simulateCmd struct {
	target
	Trace string `help:"Write the timeline for https://ui.perfetto.dev or chrome://tracing." placeholder:"FILE"`
}

// simulateReport covers the distinct ranks: those of a pipeline, else one.
type simulateReport struct {
	Seconds      float64        `json:"step_seconds"`
	streamReport                // of the first of these ranks
	Bytes        search.Traffic `json:"bytes"`
	Peaks        search.PerTier `json:"peaks"`           // of the arenas
	Live         search.PerTier `json:"live"`            // most bytes alive at a moment
	Ranks        []rankReport   `json:"ranks,omitempty"` // where there are several; in the same order
}

// streamReport is what a rank does.
type streamReport struct {
	Instructions int                `json:"instructions"`
	Busy         map[string]float64 `json:"busy"`     // seconds by stream
	Critical     map[string]float64 `json:"critical"` // seconds by stream on the longest chain
}

type rankReport struct {
	Rank int `json:"rank"`
	streamReport
}

func (v *simulateCmd) Run(c *cli.Context) error {
	if err := cli.CanWrite([]string{v.Config}, v.Trace); err != nil {
		return err
	}
	p, err := v.plannedOrExplained(c)
	if err != nil {
		return err
	}
	defer p.close()
	runs := p.predicted(c)
	if v.Trace != "" {
		if err := cli.WriteTo(v.Trace, func(w io.Writer) error { return draw.Trace(w, true, runs...) }); err != nil {
			return err
		}
	}
	r := newSimulateReport(runs)
	if p.result.Best.Plan.Ranks == 1 {
		r.Ranks = nil
	}
	if c.JSON {
		return c.Print(r)
	}
	r.print(c)
	return nil
}

func newSimulateReport(runs []draw.Run) *simulateReport {
	r := &simulateReport{}
	var moved []search.Moved
	var peaks, live [][device.NumTiers]int64
	for _, one := range runs {
		t := one.Timeline
		r.Seconds = max(r.Seconds, t.Makespan)
		r.Ranks = append(r.Ranks, rankReport{one.Program.Rank, newStreamReport(one)})
		moved, peaks, live = append(moved, search.Moved{Tiers: t.Moved, Network: t.Network}), append(peaks, t.Peak), append(live, t.Peaks())
	}
	r.streamReport = r.Ranks[0].streamReport
	r.Bytes, r.Peaks, r.Live = search.MovedTraffic(moved...), search.ByTier(peaks...), search.ByTier(live...)
	return r
}

func newStreamReport(one draw.Run) streamReport {
	t := one.Timeline
	r := streamReport{Instructions: len(one.Program.Instrs), Busy: map[string]float64{}, Critical: map[string]float64{}}
	for s, busy := range t.Busy {
		if busy > 0 {
			r.Busy[device.Stream(s).String()] = busy
		}
	}
	for _, i := range t.Critical {
		r.Critical[one.Program.Instrs[i].Stream.String()] += t.Spans[i].End - t.Spans[i].Start
	}
	return r
}

func (r *simulateReport) print(c *cli.Context) {
	if len(r.Ranks) == 0 {
		c.Textf("predicted step: %.4g s, %d instructions\n", r.Seconds, r.Instructions)
		r.streams(c, r.Seconds)
		r.memory(c, 0)
		return
	}
	c.Textf("predicted step: %.4g s\n", r.Seconds)
	for _, one := range r.Ranks {
		c.Textf("\nrank %d, %d instructions\n", one.Rank, one.Instructions)
		one.streams(c, r.Seconds)
	}
	k := slices.Index(r.Peaks.Device, slices.Max(r.Peaks.Device))
	fmt.Fprintf(c.Stdout, "\nrank %d, which takes most device memory", r.Ranks[k].Rank)
	r.memory(c, k)
}

// streams prints how busy the streams are in a step, whose seconds are given.
func (r *streamReport) streams(c *cli.Context, step float64) {
	c.Textf("\n%-18s %10s %8s %20s\n", "stream", "busy", "of step", "on the longest chain")
	for s := range device.NumStreams {
		if name := s.String(); r.Busy[name] > 0 {
			c.Textf("%-18s %8.4g s %6.1f %% %18.4g s\n", name, r.Busy[name], 100*r.Busy[name]/step, r.Critical[name])
		}
	}
}

// memory prints the bytes that rank number k of the report moves, and the memory that it takes.
func (r *simulateReport) memory(c *cli.Context, k int) {
	c.Textf("\nmoved: host to device %s, device to host %s, disk read %s, disk write %s, from other ranks %s\n",
		size.Format(r.Bytes.H2D[k]), size.Format(r.Bytes.D2H[k]), size.Format(r.Bytes.DiskRead[k]), size.Format(r.Bytes.DiskWrite[k]),
		size.Format(r.Bytes.Network[k]))
	c.Textf("memory: device %s (%s alive), host %s (%s), disk %s (%s)\n",
		size.Format(r.Peaks.Device[k]), size.Format(r.Live.Device[k]), size.Format(r.Peaks.Host[k]), size.Format(r.Live.Host[k]),
		size.Format(r.Peaks.Disk[k]), size.Format(r.Live.Disk[k]))
}
