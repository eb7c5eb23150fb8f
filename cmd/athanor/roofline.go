package main

import (
	"fmt"
	"io"

	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/roofline"
)

type rooflineCmd struct {
	target
	SVG string `name:"svg" help:"Also draw it." placeholder:"FILE"`
}

// Help is what roofline --help says besides the flags.
func (rooflineCmd) Help() string {
	return "Intensity is FLOPs by the bytes that a kind of call has to move; below the ridge of a processor memory is the limit, above it arithmetic. " +
		"What twice the rate of a part would bring is simulated with the same plan: what hides behind something else brings nothing."
}

func (v *rooflineCmd) Run(c *cli.Context) error {
	if err := cli.CanWrite([]string{v.Config}, v.SVG); err != nil {
		return err
	}
	p, err := v.plannedOrExplained(c)
	if err != nil {
		return err
	}
	defer p.close()
	best := p.result.Best
	r, err := roofline.Analyse(best.Programs, best.Plan.Ranks, p.machine.Hardware)
	if err != nil {
		return err
	}
	if v.SVG != "" {
		if err := cli.WriteTo(v.SVG, func(w io.Writer) error { return r.Draw(w) }); err != nil {
			return err
		}
	}
	if c.JSON {
		return c.Print(r)
	}
	printRoofline(c, r)
	return nil
}

// printRoofline prints the tables. Kinds that together take less than a thousandth are left out.
func printRoofline(c *cli.Context, r *roofline.Report) {
	c.Textf("%-15s %-10s %6s %9s %9s %7s %7s  %s\n", "call", "stream", "calls", "FLOPs", "bytes", "FLOP/B", "of step", "bound by")
	few := 0
	for _, k := range r.Kinds {
		if k.Share < 1e-3 {
			few++
			continue
		}
		c.Textf("%-15s %-10s %6d %9.3g %9.3g %7.4g %5.1f %%  %s\n", k.Name, k.Stream, k.Calls, float64(k.FLOPs), float64(k.Bytes), k.Intensity, 100*k.Share, k.Bound)
	}
	if few > 0 {
		c.Textf("(%d kinds of calls take less than 0.1 %% of the step each)\n", few)
	}
	c.Textf("\nstep: %s. Shares are of its time; streams overlap.\n\n", stat.Seconds(r.Seconds))
	for _, l := range r.Ridges {
		c.Textf("%-8s %-5s ridge %7.4g FLOP/B (%s, %.4g GB/s)\n", l.Stream, l.DType, l.Ridge, stat.FLOPs(l.Peak), l.Bandwidth/1e9)
	}
	c.Textf("\n%-32s %12s %9s\n", "twice as fast", "step", "saved")
	for _, g := range r.Gains {
		c.Textf("%-32s %12s %7.1f %%\n", g.Part, stat.Seconds(g.Seconds), 100*g.Saved)
	}
	if len(r.Gains) == 0 {
		fmt.Fprintln(c.Stdout, "no part alone would bring anything")
	}
}
