package main

import (
	"fmt"
	"io"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/draw"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/plan"
)

type simulateCmd struct {
	target
	Trace string `help:"Write the timeline for https://ui.perfetto.dev or chrome://tracing." placeholder:"FILE"`
}

type simulateReport struct {
	Seconds      float64            `json:"step_seconds"`
	Instructions int                `json:"instructions"`
	Busy         map[string]float64 `json:"busy"`     // seconds by stream
	Critical     map[string]float64 `json:"critical"` // seconds by stream on the longest chain
	Bytes        plan.Traffic       `json:"bytes"`
	Peaks        plan.PerTier       `json:"peaks"` // of the arenas
	Live         plan.PerTier       `json:"live"`  // most bytes alive at a moment
}

func (v *simulateCmd) Run(c *context) error {
	if err := canWrite([]string{v.Config}, v.Trace); err != nil {
		return err
	}
	p, err := v.plannedOrExplained(c)
	if err != nil {
		return err
	}
	defer p.close()
	best := p.result.Best
	if v.Trace != "" {
		predicted := draw.Run{Name: "predicted", Program: best.Program, Timeline: best.Timeline}
		if err := writeTo(v.Trace, func(w io.Writer) error { return draw.Trace(w, true, predicted) }); err != nil {
			return err
		}
	}
	t := best.Timeline
	r := simulateReport{Seconds: t.Makespan, Instructions: len(best.Program.Instrs), Busy: map[string]float64{}, Critical: map[string]float64{},
		Bytes: plan.MovedTraffic(plan.Moved{Tiers: t.Moved, Network: t.Network}), Peaks: plan.ByTier(t.Peak), Live: plan.ByTier(t.Peaks())}
	for s, busy := range t.Busy {
		if busy > 0 {
			r.Busy[device.Stream(s).String()] = busy
		}
	}
	for _, i := range t.Critical {
		r.Critical[best.Program.Instrs[i].Stream.String()] += t.Spans[i].End - t.Spans[i].Start
	}
	if c.json {
		return c.print(r)
	}
	r.print(c)
	return nil
}

func (r *simulateReport) print(c *context) {
	fmt.Fprintf(c.stdout, "predicted step: %.4g s, %d instructions\n\n", r.Seconds, r.Instructions)
	fmt.Fprintf(c.stdout, "%-18s %10s %8s %20s\n", "stream", "busy", "of step", "on the longest chain")
	for s := range device.NumStreams {
		if name := s.String(); r.Busy[name] > 0 {
			fmt.Fprintf(c.stdout, "%-18s %8.4g s %6.1f %% %18.4g s\n", name, r.Busy[name], 100*r.Busy[name]/r.Seconds, r.Critical[name])
		}
	}
	fmt.Fprintf(c.stdout, "\nmoved: host to device %s, device to host %s, disk read %s, disk write %s, from other ranks %s\n",
		size.Format(r.Bytes.H2D[0]), size.Format(r.Bytes.D2H[0]), size.Format(r.Bytes.DiskRead[0]), size.Format(r.Bytes.DiskWrite[0]),
		size.Format(r.Bytes.Network[0]))
	fmt.Fprintf(c.stdout, "memory: device %s (%s alive), host %s (%s), disk %s (%s)\n",
		size.Format(r.Peaks.Device[0]), size.Format(r.Live.Device[0]), size.Format(r.Peaks.Host[0]), size.Format(r.Live.Host[0]),
		size.Format(r.Peaks.Disk[0]), size.Format(r.Live.Disk[0]))
}
