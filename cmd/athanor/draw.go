package main

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/draw"
	"github.com/athanor-llm/athanor/internal/cli"
)

type drawCmd struct {
	target
	Out  string `help:"File to write: .html (timeline and memory) or .svg; for a run's folder, step.html in it if left out." placeholder:"FILE"`
	View string `help:"What an SVG shows: the timeline, or the memory map of a tier (${enum}), of the rank that takes most of it." enum:"timeline,device,host,disk" default:"timeline"`
}

func (v *drawCmd) Run(c *cli.Context) error {
	if v.Out == "" && isRun(v.Config) {
		v.Out = filepath.Join(v.Config, "step.html")
	}
	if v.Out == "" {
		return cli.UsageError("draw: which file? hint: add --out step.html, or --out step.svg")
	}
	kind := strings.ToLower(filepath.Ext(v.Out))
	if kind != ".svg" && kind != ".html" {
		return cli.UsageError(fmt.Sprintf("draw: --out %s: neither .svg nor .html; hint: for a trace use athanor simulate --trace", v.Out))
	}
	if err := cli.CanWrite([]string{v.Config}, v.Out); err != nil {
		return err
	}
	named := v.Config
	p, err := v.plannedOrExplained(c)
	if err != nil {
		return err
	}
	defer p.close()
	runs := p.predicted(c)
	err = cli.WriteTo(v.Out, func(w io.Writer) error {
		switch {
		case kind == ".html":
			return draw.HTML(w, "Athanor: "+named, runs...)
		case v.View == "timeline":
			return draw.Timeline(w, runs...)
		}
		tier, err := device.ParseTier(v.View)
		if err != nil {
			return err
		}
		return draw.Memory(w, fullest(runs, tier), tier)
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return c.Print(map[string]string{"file": v.Out})
	}
	fmt.Fprintln(c.Stdout, "wrote", v.Out)
	return nil
}

// predicted returns the predicted step of each distinct rank, and notes which ranks these are.
func (p *planned) predicted(c *cli.Context) (runs []draw.Run) {
	best := p.result.Best
	for k, program := range best.Programs {
		runs = append(runs, draw.Run{Name: draw.Predicted, Program: program, Timeline: best.Timelines[k], Several: best.Plan.Ranks > 1})
	}
	if n := best.Plan.Ranks; n > len(runs) {
		which := fmt.Sprintf("rank %d is", runs[0].Program.Rank)
		if len(runs) > 1 {
			which = fmt.Sprintf("ranks %d to %d are", runs[0].Program.Rank, runs[len(runs)-1].Program.Rank)
		}
		c.Tellf("note: %s shown, of %d ranks: the others do the same with other sequences, or their parts of matrices\n", which, n)
	}
	return runs
}

// fullest returns the run that takes most of a tier.
func fullest(runs []draw.Run, t device.Tier) draw.Run {
	return slices.MaxFunc(runs, func(a, b draw.Run) int { return cmp.Compare(a.Program.Height[t], b.Program.Height[t]) })
}
