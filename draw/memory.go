package draw

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/draw/svg"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/program"
)

const mapTall = 500 // pixels of the address axis

// Memory writes an SVG of one tier: time to the right, addresses up, one rectangle
// per buffer, coloured by class. The dashed line is the height of the packing: the
// memory that the run uses. Under the pointer, a box says what it holds, and which work begins and ends its life. If
// there are several ranks, it names the one shown.
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
	first, last := uses(r.Program)
	for b, life := range r.Timeline.Lives(r.Program) {
		buf := &r.Program.Buffers[b]
		if buf.Tier != tier || life.End < life.Start {
			continue
		}
		c.Box(block(leftside+life.Start*across, base-float64(buf.Addr+buf.Size)*up, (life.End-life.Start)*across, float64(buf.Size)*up, classColours[buf.Class],
			fmt.Sprintf("%v %s: %s at %d; from %s%s to %s%s", buf.Class, buf.Name, size(buf.Size), buf.Addr,
				stat.Seconds(life.Start), because(r.Program, first[b]), stat.Seconds(life.End), because(r.Program, last[b]))))
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

// uses returns each buffer's first and last instruction; -1: none.
func uses(p *program.Program) (first, last []int) {
	first, last = slices.Repeat([]int{-1}, len(p.Buffers)), slices.Repeat([]int{-1}, len(p.Buffers))
	for i := range p.Instrs {
		for _, a := range p.Instrs[i].Args {
			if a.Absent() {
				continue
			}
			if first[a.Buf] < 0 {
				first[a.Buf] = i
			}
			last[a.Buf] = i
		}
	}
	return first, last
}

// because names an instruction, in parentheses, and the work that it belongs to.
func because(p *program.Program, i int) string {
	if i < 0 {
		return ""
	}
	op, of := p.Instrs[i].Op.String(), work(p.Instrs[i].Key)
	if strings.HasPrefix(of, op+" ") { // a copy
		return " (" + of + ")"
	}
	return " (" + op + ", " + of + ")"
}
