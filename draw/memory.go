package draw

import (
	"fmt"
	"io"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/draw/svg"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/program"
)

const mapTall = 500 // pixels of the address axis

// Memory writes an SVG of one tier: time to the right, addresses up, one rectangle
// per buffer, coloured by class. The dashed line is the height of the packing: the
// memory that the run uses. If there are several ranks, it names the one shown.
func Memory(w io.Writer, r Run, tier device.Tier) error {
	c := newCanvas(w, leftside+width+20, headTall+mapTall+30)
	for class, colour := range classColours {
		if slices.ContainsFunc(r.Program.Buffers, func(b program.Buffer) bool { return b.Tier == tier && int(b.Class) == class }) {
			c.legend(colour, program.Class(class).String())
		}
	}
	if r.Several {
		c.label(leftside, headTall-6, r.title())
	}
	top := max(r.Program.Height[tier], r.Timeline.Peak[tier], 1)
	across, up := width/max(r.Timeline.Makespan, 1e-300), mapTall/float64(top)
	base := float64(headTall + mapTall)
	for b, life := range r.Timeline.Lives(r.Program) {
		buf := &r.Program.Buffers[b]
		if buf.Tier != tier || life.End < life.Start {
			continue
		}
		c.Box(block(leftside+life.Start*across, base-float64(buf.Addr+buf.Size)*up, (life.End-life.Start)*across, float64(buf.Size)*up, classColours[buf.Class],
			fmt.Sprintf("%s: %s at %d, %s to %s", buf.Name, size(buf.Size), buf.Addr, stat.Seconds(life.Start), stat.Seconds(life.End))))
	}
	y := base - float64(r.Program.Height[tier])*up
	height := &svg.Path{Stroke: "black", Dash: "4"}
	c.Path(height.MoveTo(leftside, y).HLineTo(leftside + width))
	c.label(4, y+4, size(r.Program.Height[tier]))
	c.label(4, base, "0")
	c.label(leftside, base+20, "0")
	c.label(leftside+width-60, base+20, stat.Seconds(r.Timeline.Makespan))
	return c.Close()
}
