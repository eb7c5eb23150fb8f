package scale

import (
	"fmt"
	"io"
	"math"

	"github.com/athanor-llm/athanor/draw/svg"
)

// Point is one model of the family and its fastest configs.
type Point struct {
	X          int     `json:"x"`
	Parameters float64 `json:"parameters"`
	Baseline   Result  `json:"baseline"` // 3D, contiguous pipeline
	Improved   Result  `json:"improved"` // 3D, layered and modular
}

// Curve evaluates the family: how the shortest time and the memory grow with the model. Memory still fits a GPU at
// sizes whose training takes far more than a year: there is no memory wall.
func Curve(h Hardware) []Point {
	var points []Point
	for _, x := range []int{32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512} {
		m := Family(x)
		t := h.tensor(m)
		points = append(points, Point{x, m.Parameters, Evaluate(m, h, contiguous(m, t)), Evaluate(m, h, modular(m, h, t))})
	}
	return points
}

// line is one curve of a plot.
type line struct {
	name, colour string
	dashed       bool
	y            func(p Point) float64
}

// panel is one plot with logarithmic axes.
type panel struct {
	title     string
	lines     []line
	left      float64 // pixels
	low, high float64 // ends of the y axis
	marks     []mark  // horizontal lines with a meaning
	tick      func(y float64) string
}

type mark struct {
	y    float64
	text string
}

const (
	plotWidth, plotHeight = 470.0, 330.0
	plotTop               = 74.0
	grey                  = "#5c6b7a"
)

// PlotCurve draws two panels: shortest training time, and memory per GPU, against the size of the model.
func PlotCurve(w io.Writer, h Hardware, points []Point) error {
	const gib = 1 << 30
	out := svg.New(w, svg.Page{Width: 1180, Height: 470, Font: "Inter, Helvetica, Arial, sans-serif", Paper: "#fcfcfa"})
	out.Label(svg.Label{X: 70, Y: 28, Size: 17, Bold: true, Fill: "#1b2733", Text: "No memory wall"})
	out.Label(svg.Label{X: 70, Y: 48, Size: 12, Fill: grey, Text: fmt.Sprintf("X_x family on %s: as many GPUs as the critical batch keeps busy", h.Name)})
	number := func(y float64) string { return fmt.Sprintf("%g", y) }
	panels := []panel{
		{title: "shortest training time (days)", left: 70, low: 1e-3, high: 1e5, tick: number,
			marks: []mark{{30, "a month"}, {365, "a year"}, {3650, "ten years"}},
			lines: []line{
				{"3D", "#a03a5c", false, func(p Point) float64 { return p.Baseline.Days }},
				{"layered + modular", "#1d4f91", false, func(p Point) float64 { return p.Improved.Days }},
			}},
		{title: "memory per GPU (GiB)", left: 640, low: 1e-4, high: 1e3, tick: number,
			marks: []mark{{h.Memory / gib, "the GPU"}},
			lines: []line{
				{"3D, all", "#a03a5c", false, func(p Point) float64 { return p.Baseline.Total() / gib }},
				{"layered + modular, all", "#1d4f91", false, func(p Point) float64 { return p.Improved.Total() / gib }},
				{"of it: state", "#c8871b", true, func(p Point) float64 { return p.Improved.State / gib }},
				{"buffers", "#1f7a5a", true, func(p Point) float64 { return p.Improved.Buffers / gib }},
				{"checkpoints", "#5b3a8e", true, func(p Point) float64 { return p.Improved.Checkpoints / gib }},
			}},
	}
	for i := range panels {
		panels[i].draw(out, points)
	}
	return out.Close()
}

// draw writes one panel.
func (p *panel) draw(out *svg.Picture, points []Point) {
	low, high := math.Log10(points[0].Parameters), math.Log10(points[len(points)-1].Parameters)
	x := func(v float64) float64 { return p.left + plotWidth*(math.Log10(v)-low)/(high-low) }
	y := func(v float64) float64 {
		v = math.Min(math.Max(v, p.low), p.high)
		return plotTop + plotHeight*(1-math.Log10(v/p.low)/math.Log10(p.high/p.low))
	}
	out.Box(svg.Box{X: p.left, Y: plotTop, W: plotWidth, H: plotHeight, Fill: "#ffffff", Stroke: "#d9dde1"})
	out.Label(svg.Label{X: p.left, Y: plotTop - 8, Size: 12, Bold: true, Fill: "#3b4956", Text: p.title})
	across := func(y float64, stroke, dash string) {
		line := &svg.Path{Stroke: stroke, Dash: dash}
		out.Path(line.MoveTo(p.left, y).HLineTo(p.left + plotWidth))
	}
	for v := p.low; v <= p.high*1.001; v *= 10 {
		across(y(v), "#eceff1", "")
		out.Label(svg.Label{X: p.left - 6, Y: y(v) + 3, Size: 10, Anchor: "end", Fill: grey, Text: p.tick(v)})
	}
	for v := math.Pow(10, math.Ceil(low)); v <= points[len(points)-1].Parameters; v *= 10 {
		line := &svg.Path{Stroke: "#eceff1"}
		out.Path(line.MoveTo(x(v), plotTop).VLineTo(plotTop + plotHeight))
		out.Label(svg.Label{X: x(v), Y: plotTop + plotHeight + 15, Size: 10, Anchor: "middle", Fill: grey, Text: Count(v)})
	}
	for _, m := range p.marks {
		across(y(m.y), "#8a97a3", "2 4")
		out.Label(svg.Label{X: p.left + 6, Y: y(m.y) - 4, Size: 10, Fill: grey, Text: m.text})
	}
	at := p.left
	for _, l := range p.lines {
		l.draw(out, points, x, y)
		key := l.path()
		out.Path(key.MoveTo(at, plotTop+plotHeight+40).HLineTo(at + 16))
		out.Label(svg.Label{X: at + 20, Y: plotTop + plotHeight + 44, Size: 11, Fill: "#3b4956", Text: l.name})
		at += 34 + 6*float64(len(l.name))
	}
	out.Label(svg.Label{X: p.left + plotWidth, Y: plotTop + plotHeight + 28, Size: 11, Anchor: "end", Fill: grey, Text: "parameters"})
}

func (l *line) path() *svg.Path {
	if l.dashed {
		return &svg.Path{Stroke: l.colour, Width: 2, Dash: "5 3"}
	}
	return &svg.Path{Stroke: l.colour, Width: 2}
}

// draw draws the curve on axes.
func (l *line) draw(out *svg.Picture, points []Point, x, y func(float64) float64) {
	curve := l.path()
	to := curve.MoveTo
	for _, p := range points {
		to(x(p.Parameters), y(l.y(p)))
		to = curve.LineTo
	}
	out.Path(curve)
}

// Count formats a large number with a suffix, as in 1.26T.
func Count(n float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e15, "P"}, {1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}} {
		if n >= u.size {
			return fmt.Sprintf("%.3g%s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%.3g", n)
}
