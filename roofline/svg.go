package roofline

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/draw/svg"
	"github.com/athanor-llm/athanor/internal/stat"
)

// Sizes of the picture in pixels.
const (
	wide, tall = 760, 460
	left, low  = 70, 410 // the corner of the axes
	right, top = 740, 30
)

// axes are logarithmic.
type axes struct{ fromX, toX, fromY, toY float64 } // powers of ten

func (a *axes) x(v float64) float64 {
	return left + (math.Log10(v)-a.fromX)/(a.toX-a.fromX)*(right-left)
}

func (a *axes) y(v float64) float64 {
	return low - (math.Log10(v)-a.fromY)/(a.toY-a.fromY)*(low-top)
}

// Draw writes the roofline of the device's engine as SVG: intensity to the right, FLOP/s up, a mark for each kind of call on
// the device that computes, as large as its share of the step.
func (r *Report) Draw(w io.Writer) error {
	p := svg.New(w, svg.Page{Width: wide, Height: tall, Size: 12})
	p.Label(svg.Label{X: left, Y: 18, Bold: true, Text: fmt.Sprintf("%s: a step of %s", r.Machine, stat.Seconds(r.Seconds))})
	a := r.axes()
	for e := math.Ceil(a.fromX); e <= a.toX; e++ {
		x := a.x(math.Pow(10, e))
		p.Path((&svg.Path{Stroke: "#ddd"}).MoveTo(x, top).VLineTo(low))
		p.Label(svg.Label{X: x, Y: low + 16, Anchor: "middle", Text: fmt.Sprintf("%g", math.Pow(10, e))})
	}
	for e := math.Ceil(a.fromY); e <= a.toY; e++ {
		y := a.y(math.Pow(10, e))
		p.Path((&svg.Path{Stroke: "#ddd"}).MoveTo(left, y).HLineTo(right))
		p.Label(svg.Label{X: left - 6, Y: y + 4, Anchor: "end", Text: fmt.Sprintf("%g", math.Pow(10, e-9))})
	}
	p.Label(svg.Label{X: (left + right) / 2, Y: low + 36, Anchor: "middle", Text: "FLOP per byte"})
	p.Label(svg.Label{X: 8, Y: top, Text: "GFLOP/s"})
	for _, l := range r.Ridges {
		if l.Stream != "compute" {
			continue
		}
		start := math.Pow(10, a.fromX)
		roof := &svg.Path{Stroke: map[string]string{"fp32": "#0072b2", "bf16": "#d55e00"}[l.DType], Width: 1.5}
		if y := start * l.Bandwidth; y < math.Pow(10, a.fromY) { // where the slope enters the picture
			start = math.Pow(10, a.fromY) / l.Bandwidth
		}
		p.Path(roof.MoveTo(a.x(start), a.y(start*l.Bandwidth)).LineTo(a.x(l.Ridge), a.y(l.Peak)).HLineTo(right))
		p.Label(svg.Label{X: right, Y: a.y(l.Peak) - 5, Anchor: "end", Text: fmt.Sprintf("%s %s", l.DType, stat.FLOPs(l.Peak))})
	}
	var labels []svg.Label
	for _, k := range r.Kinds {
		if !k.marked() {
			continue
		}
		size := 4 + 24*math.Sqrt(k.Share)
		x, y := a.x(k.Intensity), a.y(float64(k.FLOPs)/k.Seconds)
		p.Box(svg.Box{X: x - size/2, Y: y - size/2, W: size, H: size, Round: size / 2, Fill: "#56b4e9", Stroke: "#333", Line: 0.5,
			Title: fmt.Sprintf("%s: %.3g FLOP/B, %s, %.1f %% of the step, bound by %s", k.Name, k.Intensity, stat.FLOPs(float64(k.FLOPs)/k.Seconds), 100*k.Share, k.Bound)})
		if k.Share > 0.02 {
			labels = append(labels, svg.Label{X: x + size/2 + 3, Y: y + 4, Text: k.Name})
		}
	}
	for _, l := range spreadLabels(labels) {
		p.Label(l)
	}
	return p.Close()
}

// spreadLabels moves labels down until none is over another.
func spreadLabels(labels []svg.Label) []svg.Label {
	const line, letter = 13, 7 // pixels
	slices.SortFunc(labels, func(a, b svg.Label) int { return cmp.Compare(a.Y, b.Y) })
	for i := range labels {
		l := &labels[i]
		for _, o := range labels[:i] { // higher ones, which stay
			if l.Y-o.Y < line && l.X < o.X+letter*float64(len(o.Text)) && o.X < l.X+letter*float64(len(l.Text)) {
				l.Y = o.Y + line
			}
		}
	}
	return labels
}

// marked reports whether a kind of call has a place in the picture.
func (k *Kind) marked() bool { return k.Stream == "compute" && k.Intensity > 0 && k.Seconds > 0 }

// axes returns ranges that everything is in.
func (r *Report) axes() *axes {
	a := &axes{fromX: 0, toX: 3, fromY: 12, toY: 10}
	for _, l := range r.Ridges {
		if l.Stream == "compute" {
			a.toX, a.toY = max(a.toX, math.Log10(l.Ridge)+1), max(a.toY, math.Log10(l.Peak)+0.3)
		}
	}
	for i := range r.Kinds {
		if k := &r.Kinds[i]; k.marked() {
			a.fromX, a.toX = min(a.fromX, math.Log10(k.Intensity)-0.3), max(a.toX, math.Log10(k.Intensity)+0.3)
			a.fromY = min(a.fromY, math.Log10(float64(k.FLOPs)/k.Seconds)-0.3)
		}
	}
	a.fromY = min(a.fromY, a.toY-2)
	return a
}
