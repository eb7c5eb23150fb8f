package search

import (
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/size"
)

// describePipeline describes what each rank of a pipeline holds, a line each; ""
// for other plans.
func describePipeline(c *Candidate) string {
	p := c.Plan.Pipeline
	if p == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "pipeline: %s on %d ranks, %d stages, %d micro-batches", p.Schedule, p.Ranks, len(p.Stages), c.Plan.MicroBatches)
	if p.Slices > 1 {
		fmt.Fprintf(&b, " in %d slices", p.Slices)
	}
	if n := c.Plan.Replicas(); n > 1 {
		fmt.Fprintf(&b, ", %d replicas with different sequences", n)
	}
	fmt.Fprintf(&b, "; ranks do not compute in %.1f %% of the step\n", 100*c.Idle())
	fmt.Fprintf(&b, "stages begin with segments %v (0 is the embedding, then the layers)\n", p.Stages)
	for r, prog := range c.Programs {
		first, last, layers := 1<<30, -1, map[int]bool{}
		var messages int
		var bytes int64
		for i := range prog.Instrs {
			in := &prog.Instrs[i]
			if in.Stream == device.Compute && in.Key.Segment >= 0 {
				first, last = min(first, in.Key.Segment), max(last, in.Key.Segment)
				layers[in.Key.Segment] = true
			}
			if in.Op == graph.Send {
				messages++
				bytes += prog.Operand(in.Args[graph.SendSrc]).Bytes()
			}
		}
		fmt.Fprintf(&b, "  rank %d: %d segments of %d to %d, %s of device memory, sends %d messages of %s in total\n",
			r, len(layers), first, last, size.Format(prog.Height[device.DeviceTier]), messages, size.Format(bytes))
	}
	return b.String()
}
