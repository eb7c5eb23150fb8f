package draw

import (
	"fmt"
	"io"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/draw/svg"
	"github.com/athanor-llm/athanor/internal/stat"
)

// Sizes in pixels.
const (
	width    = 1200 // length of the time axis
	leftside = 90   // margin for names
	rowStep  = 22
	rowTall  = 18
	headTall = 40
	// Consecutive instructions of one colour within this distance are merged into
	// one rectangle, since they would be indistinguishable.
	hairline = 0.25
)

// Timeline writes an SVG with one row per stream, coloured by the kind of work. All
// runs share one scale, so that predicted and measured times can be compared.
func Timeline(w io.Writer, runs ...Run) error {
	longest, tall := 0.0, headTall
	for _, r := range runs {
		longest = max(longest, r.Timeline.Makespan)
		tall += headTall + rowStep*len(used(r))
	}
	c := newCanvas(w, leftside+width+20, tall)
	for i, colour := range dirColours {
		c.legend(colour, dirWords[i])
	}
	scale := 0.0
	if longest > 0 {
		scale = width / longest
	}
	y := headTall
	for _, r := range runs {
		c.label(4, float64(y)+16, fmt.Sprintf("%s: %s", r.title(), stat.Seconds(r.Timeline.Makespan)))
		y += headTall - 14
		for _, s := range used(r) {
			busy := 100 * r.Timeline.Busy[s] / max(r.Timeline.Makespan, 1e-300)
			c.label(4, float64(y)+13, fmt.Sprintf("%s %.0f%%", s, busy))
			c.stream(r, s, float64(y), scale)
			y += rowStep
		}
		y += 14
	}
	return c.Close()
}

// used returns the streams that are ever busy.
func used(r Run) []device.Stream {
	var list []device.Stream
	for s := range device.NumStreams {
		if r.Timeline.Busy[s] > 0 {
			list = append(list, s)
		}
	}
	return list
}

// stream draws the row of one stream.
func (c *canvas) stream(r Run, s device.Stream, y, scale float64) {
	var open svg.Box
	count := 0
	flush := func() {
		if count > 1 {
			open.Title = fmt.Sprintf("%d instructions, the last: %s", count, open.Title)
		}
		if count > 0 {
			c.Box(open)
		}
		count = 0
	}
	for i, span := range r.Timeline.Spans {
		in := &r.Program.Instrs[i]
		if in.Stream != s {
			continue
		}
		x, end := leftside+span.Start*scale, leftside+span.End*scale
		colour := dirColours[in.Key.Dir]
		join := count > 0 && colour == open.Fill && x-open.X-open.W < hairline && (end-x < hairline || open.W < hairline)
		if !join {
			flush()
			open = block(x, y, 0, rowTall, colour, "")
		}
		count++
		open.W = end - open.X
		open.Title = fmt.Sprintf("i%d %s, %s, %s", i, label(r.Program, i), work(in.Key), stat.Seconds(span.End-span.Start))
	}
	flush()
}

// canvas is a picture with a legend.
type canvas struct {
	*svg.Picture
	said float64 // how far the legend reaches
}

func newCanvas(w io.Writer, wide, tall int) *canvas {
	return &canvas{Picture: svg.New(w, svg.Page{Width: float64(wide), Height: float64(tall), Size: 11})}
}

// block returns the rectangle of something with a duration.
func block(x, y, w, h float64, fill, title string) svg.Box {
	return svg.Box{X: x, Y: y, W: w, H: h, Fill: fill, Stroke: "#333", Line: 0.1, Title: title}
}

func (c *canvas) label(x, y float64, text string) { c.Label(svg.Label{X: x, Y: y, Text: text}) }

// legend explains a colour at the top, to the right of those explained so far.
func (c *canvas) legend(colour, name string) {
	x := 4 + c.said
	c.Box(svg.Box{X: x, Y: 8, W: 12, H: 12, Fill: colour})
	c.label(x+16, 18, name)
	c.said += 30 + 6.5*float64(len(name))
}
