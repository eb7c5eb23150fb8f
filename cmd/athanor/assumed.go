package main

import (
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/cli"
)

// sayAssumed says which rates a plan for a described machine counts on.
func (p *planned) sayAssumed(c *cli.Context) {
	if spec := p.spec(); spec.Hardware.Name != "" {
		c.Text(assumedText(spec.Hardware.Name, p.machine.Hardware, spec.Ranks))
	}
}

// assumedText says at which rates one of some ranks uses a machine's memories and links, a line.
func assumedText(name string, h *hardware.Hardware, ranks int) string {
	var list []string
	add := func(what string, rate float64) { list = append(list, fmt.Sprintf("%s %.4g", what, rate/1e9)) }
	for _, e := range h.Engines {
		add(map[device.Stream]string{device.Compute: "device memory", device.HostCompute: "host memory"}[e.Stream], e.Bandwidth)
	}
	for _, l := range h.Links {
		switch {
		case l.From != l.To:
			add(fmt.Sprintf("%v to %v", l.From, l.To), l.Bandwidth)
		case ranks > 1:
			add("between ranks", l.Bandwidth)
		}
	}
	if n := h.Network; n != nil && n.Hosts > 1 {
		add("between hosts", n.Link.Bandwidth)
	}
	of := ""
	if ranks > 1 {
		of = " for a rank"
	}
	return fmt.Sprintf("assumed of %s, GB/s%s: %s\n", name, of, strings.Join(list, ", "))
}
