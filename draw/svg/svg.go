// Package svg writes pictures: boxes, texts and paths, and nothing else that SVG has. Every picture of Athanor is
// written by it, so that all are well-formed, whatever is in a name, and stop at the first error.
//
// Example:
//
//	p := svg.New(w, svg.Page{Width: 200, Height: 100})
//	p.Box(svg.Box{X: 10, Y: 10, W: 50, H: 20, Fill: "#56b4e9", Title: "forward"})
//	err := p.Close()
//
// Numbers are pixels, rounded to thousandths. What is zero or empty is left out, and SVG's defaults apply.
package svg

import (
	"bufio"
	"encoding/xml"
	"io"
	"math"
	"strconv"
)

// A Page is the sheet of a picture.
type Page struct {
	Width, Height float64
	Font          string  // family; sans-serif if empty
	Size          float64 // of texts that give none
	Paper         string  // colour; white if empty
}

// A Picture is being written.
type Picture struct{ out *bufio.Writer }

// New begins a picture. Close ends it and returns the first error of w.
func New(w io.Writer, g Page) *Picture {
	if g.Font == "" {
		g.Font = "sans-serif"
	}
	if g.Paper == "" {
		g.Paper = "white"
	}
	p := &Picture{bufio.NewWriter(w)}
	p.open("svg", "xmlns", "http://www.w3.org/2000/svg", "viewBox", "0 0 "+number(g.Width)+" "+number(g.Height))
	p.length("width", g.Width)
	p.length("height", g.Height)
	p.attributes("font-family", g.Font)
	p.option("font-size", g.Size)
	p.raw(">\n")
	p.open("rect", "width", "100%", "height", "100%", "fill", g.Paper)
	p.raw("/>\n")
	return p
}

// Close ends the picture.
func (p *Picture) Close() error {
	p.raw("</svg>\n")
	return p.out.Flush()
}

// A Box is a rectangle.
type Box struct {
	X, Y, W, H float64
	Round      float64 // radius of its corners
	Fill       string
	Stroke     string  // of its outline
	Line       float64 // width of the outline
	Title      string  // shown under the pointer
}

// Box draws a rectangle.
func (p *Picture) Box(b Box) {
	p.open("rect")
	p.length("x", b.X)
	p.length("y", b.Y)
	p.length("width", max(b.W, 0))
	p.length("height", max(b.H, 0))
	p.option("rx", b.Round)
	p.attributes("fill", b.Fill, "stroke", b.Stroke)
	p.option("stroke-width", b.Line)
	if b.Title == "" {
		p.raw("/>\n")
		return
	}
	p.raw("><title>")
	p.text(b.Title)
	p.raw("</title></rect>\n")
}

// A Label is a line of text.
type Label struct {
	X, Y   float64 // of its base line, at Anchor
	Size   float64
	Bold   bool
	Anchor string // start, middle or end
	Fill   string
	Text   string
}

// Label writes a text.
func (p *Picture) Label(l Label) {
	p.open("text")
	p.length("x", l.X)
	p.length("y", l.Y)
	p.option("font-size", l.Size)
	if l.Bold {
		p.attributes("font-weight", "600")
	}
	p.attributes("text-anchor", l.Anchor, "fill", l.Fill)
	p.raw(">")
	p.text(l.Text)
	p.raw("</text>\n")
}

// A Path is a sequence of lines and how they are drawn.
type Path struct {
	Stroke  string
	Width   float64 // of the line
	Dash    string
	Fill    string  // of what it encloses; none if empty
	Opacity float64 // of the fill
	way     []byte
}

// MoveTo moves the pen without drawing.
func (a *Path) MoveTo(x, y float64) *Path { return a.step('M', x, y) }

// LineTo draws to a point.
func (a *Path) LineTo(x, y float64) *Path { return a.step('L', x, y) }

// HLineTo draws a horizontal line to x.
func (a *Path) HLineTo(x float64) *Path { return a.step('H', x) }

// VLineTo draws a vertical line to y.
func (a *Path) VLineTo(y float64) *Path { return a.step('V', y) }

// ClosePath draws to where the pen came down.
func (a *Path) ClosePath() *Path { return a.step('Z') }

func (a *Path) step(command byte, at ...float64) *Path {
	a.way = append(a.way, command)
	for i, x := range at {
		if i > 0 {
			a.way = append(a.way, ' ')
		}
		a.way = append(a.way, number(x)...)
	}
	return a
}

// Path draws a path.
func (p *Picture) Path(a *Path) {
	p.open("path", "d", string(a.way))
	fill := a.Fill
	if fill == "" {
		fill = "none"
	}
	p.attributes("fill", fill)
	p.option("fill-opacity", a.Opacity)
	p.attributes("stroke", a.Stroke)
	p.option("stroke-width", a.Width)
	p.attributes("stroke-dasharray", a.Dash)
	p.raw("/>\n")
}

// open begins an element, with attributes.
func (p *Picture) open(name string, pairs ...string) {
	p.raw("<" + name)
	p.attributes(pairs...)
}

// attributes writes those that are not empty.
func (p *Picture) attributes(pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			p.raw(" " + pairs[i] + `="`)
			p.text(pairs[i+1])
			p.raw(`"`)
		}
	}
}

// length writes an attribute in pixels.
func (p *Picture) length(name string, pixels float64) {
	p.raw(" " + name + `="` + number(pixels) + `"`)
}

// option writes an attribute unless it is zero.
func (p *Picture) option(name string, value float64) {
	if value != 0 {
		p.length(name, value)
	}
}

func (p *Picture) raw(text string) { p.out.WriteString(text) } // the writer keeps its first error

func (p *Picture) text(text string) { xml.EscapeText(p.out, []byte(text)) } // replaces what XML cannot have

// number formats pixels without zeros that say nothing.
func number(x float64) string {
	return strconv.FormatFloat(math.Round(x*1000)/1000+0, 'f', -1, 64) // +0: no -0
}
