package draw

import (
	"fmt"
	"html"
	"io"

	"github.com/athanor-llm/athanor/device"
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
		c.text(4, float64(y)+16, fmt.Sprintf("%s: %s", r.title(), stat.Seconds(r.Timeline.Makespan)))
		y += headTall - 14
		for _, s := range used(r) {
			busy := 100 * r.Timeline.Busy[s] / max(r.Timeline.Makespan, 1e-300)
			c.text(4, float64(y)+13, fmt.Sprintf("%s %.0f%%", s, busy))
			c.stream(r, s, float64(y), scale)
			y += rowStep
		}
		y += 14
	}
	return c.end()
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
	var open rectangle
	count := 0
	flush := func() {
		if count > 1 {
			open.title = fmt.Sprintf("%d instructions, the last: %s", count, open.title)
		}
		if count > 0 {
			c.rect(open)
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
		join := count > 0 && colour == open.fill && x-open.x-open.w < hairline && (end-x < hairline || open.w < hairline)
		if !join {
			flush()
			open = rectangle{x: x, y: y, h: rowTall, fill: colour}
		}
		count++
		open.w = end - open.x
		open.title = fmt.Sprintf("i%d %s, %s, %s", i, label(r.Program, i), work(in.Key), stat.Seconds(span.End-span.Start))
	}
	flush()
}

// canvas writes an SVG and records the first error.
type canvas struct {
	w    io.Writer
	said float64 // how far the legend reaches
	err  error
}

type rectangle struct {
	x, y, w, h  float64
	fill, title string
}

func newCanvas(w io.Writer, wide, tall int) *canvas {
	c := &canvas{w: w}
	c.printf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"11\">\n", wide, tall, wide, tall)
	c.printf("<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n")
	return c
}

func (c *canvas) printf(format string, args ...any) {
	if c.err == nil {
		_, c.err = fmt.Fprintf(c.w, format, args...)
	}
}

func (c *canvas) rect(r rectangle) {
	c.printf("<rect x=\"%.3f\" y=\"%.3f\" width=\"%.3f\" height=\"%.3f\" fill=\"%s\" stroke=\"#333\" stroke-width=\"0.1\"><title>%s</title></rect>\n",
		r.x, r.y, max(r.w, 0), r.h, r.fill, html.EscapeString(r.title))
}

func (c *canvas) text(x, y float64, s string) {
	c.printf("<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x, y, html.EscapeString(s))
}

// legend explains a colour at the top, to the right of those explained so far.
func (c *canvas) legend(colour, name string) {
	x := 4 + c.said
	c.printf("<rect x=\"%.1f\" y=\"8\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, colour)
	c.text(x+16, 18, name)
	c.said += 30 + 6.5*float64(len(name))
}

func (c *canvas) end() error {
	c.printf("</svg>\n")
	return c.err
}
