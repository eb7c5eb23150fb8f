package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/draw"
)

type drawCmd struct {
	target
	Out  string `help:"File to write: .html (timeline and memory) or .svg." required:"" placeholder:"FILE"`
	View string `help:"What an SVG shows: the timeline, or the memory map of a tier (${enum})." enum:"timeline,device,host,disk" default:"timeline"`
}

func (v *drawCmd) Run(c *context) error {
	kind := strings.ToLower(filepath.Ext(v.Out))
	if kind != ".svg" && kind != ".html" {
		return usageError{fmt.Sprintf("draw: --out %s: neither .svg nor .html; hint: for a trace use athanor simulate --trace", v.Out)}
	}
	if err := canWrite([]string{v.Config}, v.Out); err != nil {
		return err
	}
	p, err := v.plannedOrExplained(c)
	if err != nil {
		return err
	}
	defer p.close()
	r := draw.Run{Name: "predicted", Program: p.result.Best.Program, Timeline: p.result.Best.Timeline}
	err = writeTo(v.Out, func(w io.Writer) error {
		switch {
		case kind == ".html":
			return draw.HTML(w, "Athanor: "+v.Config, r)
		case v.View == "timeline":
			return draw.Timeline(w, r)
		}
		tier, err := device.ParseTier(v.View)
		if err != nil {
			return err
		}
		return draw.Memory(w, r, tier)
	})
	if err != nil {
		return err
	}
	if c.json {
		return c.print(map[string]string{"file": v.Out})
	}
	fmt.Fprintln(c.stdout, "wrote", v.Out)
	return nil
}
