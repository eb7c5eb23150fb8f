package scale

import (
	"bufio"
	"fmt"
	"io"
	"math"
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
)

// PlotCurve draws two panels: shortest training time, and memory per GPU, against the size of the model.
func PlotCurve(w io.Writer, h Hardware, points []Point) error {
	const gib = 1 << 30
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1180 470" width="1180" height="470" font-family="Inter, Helvetica, Arial, sans-serif">`+"\n")
	fmt.Fprintf(out, `<rect width="100%%" height="100%%" fill="#fcfcfa"/><text x="70" y="28" font-size="17" font-weight="600" fill="#1b2733">No memory wall</text>`+"\n")
	fmt.Fprintf(out, `<text x="70" y="48" font-size="12" fill="#5c6b7a">X_x family on %s: as many GPUs as the critical batch keeps busy</text>`+"\n", h.Name)
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
	fmt.Fprintln(out, "</svg>")
	return out.Flush()
}

// draw writes one panel.
func (p *panel) draw(out *bufio.Writer, points []Point) {
	low, high := math.Log10(points[0].Parameters), math.Log10(points[len(points)-1].Parameters)
	x := func(v float64) float64 { return p.left + plotWidth*(math.Log10(v)-low)/(high-low) }
	y := func(v float64) float64 {
		v = math.Min(math.Max(v, p.low), p.high)
		return plotTop + plotHeight*(1-math.Log10(v/p.low)/math.Log10(p.high/p.low))
	}
	fmt.Fprintf(out, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#ffffff" stroke="#d9dde1"/>`+"\n", p.left, plotTop, plotWidth, plotHeight)
	fmt.Fprintf(out, `<text x="%.1f" y="%.1f" font-size="12" font-weight="600" fill="#3b4956">%s</text>`+"\n", p.left, plotTop-8, p.title)
	for v := p.low; v <= p.high*1.001; v *= 10 {
		fmt.Fprintf(out, `<path d="M%.1f %.1fh%.1f" stroke="#eceff1"/><text x="%.1f" y="%.1f" font-size="10" text-anchor="end" fill="#5c6b7a">%s</text>`+"\n",
			p.left, y(v), plotWidth, p.left-6, y(v)+3, p.tick(v))
	}
	for v := math.Pow(10, math.Ceil(low)); v <= points[len(points)-1].Parameters; v *= 10 {
		fmt.Fprintf(out, `<path d="M%.1f %.1fv%.1f" stroke="#eceff1"/><text x="%.1f" y="%.1f" font-size="10" text-anchor="middle" fill="#5c6b7a">%s</text>`+"\n",
			x(v), plotTop, plotHeight, x(v), plotTop+plotHeight+15, Count(v))
	}
	for _, m := range p.marks {
		fmt.Fprintf(out, `<path d="M%.1f %.1fh%.1f" stroke="#8a97a3" stroke-dasharray="2 4"/><text x="%.1f" y="%.1f" font-size="10" fill="#5c6b7a">%s</text>`+"\n",
			p.left, y(m.y), plotWidth, p.left+6, y(m.y)-4, m.text)
	}
	at := p.left
	for _, l := range p.lines {
		dash := ""
		if l.dashed {
			dash = ` stroke-dasharray="5 3"`
		}
		fmt.Fprintf(out, `<path fill="none" stroke="%s" stroke-width="2"%s d="`, l.colour, dash)
		for i, pt := range points {
			fmt.Fprintf(out, "%c%.1f %.1f", "ML"[min(i, 1)], x(pt.Parameters), y(l.y(pt)))
		}
		fmt.Fprintf(out, `"/><path d="M%.1f %.1fh16" stroke="%s" stroke-width="2"%s/><text x="%.1f" y="%.1f" font-size="11" fill="#3b4956">%s</text>`+"\n",
			at, plotTop+plotHeight+40, l.colour, dash, at+20, plotTop+plotHeight+44, l.name)
		at += 34 + 6*float64(len(l.name))
	}
	fmt.Fprintf(out, `<text x="%.1f" y="%.1f" font-size="11" text-anchor="end" fill="#5c6b7a">parameters</text>`+"\n", p.left+plotWidth, plotTop+plotHeight+28)
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
