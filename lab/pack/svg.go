package pack

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/draw/svg"
)

// Drawing sizes, in pixels.
const (
	drawWidth  = 1200
	drawHeight = 600
	drawMargin = 50
	labelWidth = 7 // of a character
)

// WriteSVG draws a packing: time to the right, addresses up, a rectangle per
// buffer (its name and numbers appear under the pointer). The dark line is
// the bytes alive, red where it comes within one percent of its peak; dashed
// lines are the capacity and the height. Buffers of the conflict are red: if
// there is no packing, s is nil and only they are drawn, packed without a limit.
func WriteSVG(w io.Writer, p alloc.Problem, s *alloc.Solution, conflict []int) error {
	c := newCanvas(w, p, s, conflict)
	for _, i := range c.shown {
		c.buffer(i)
	}
	c.alive()
	c.level(p.Capacity, "capacity", "#a00", drawMargin, "start")
	if s != nil {
		c.level(s.Height, "height", "#333", drawMargin+drawWidth, "end")
	}
	return c.Close()
}

type canvas struct {
	*svg.Picture
	p            alloc.Problem
	offsets      []int64
	shown        []int // indices drawn
	bad          map[int]bool
	lower, upper int64   // time drawn
	high         float64 // bytes drawn
}

func newCanvas(w io.Writer, p alloc.Problem, s *alloc.Solution, conflict []int) *canvas {
	c := &canvas{p: p, bad: make(map[int]bool), lower: 0, upper: 1, high: float64(max(p.Capacity, 1))}
	for _, i := range conflict {
		c.bad[i] = true
	}
	if s != nil {
		c.offsets = s.Offsets
		for i := range p.Buffers {
			c.shown = append(c.shown, i)
		}
	} else {
		c.shown = conflict
		c.offsets = c.stack(conflict)
	}
	for k, i := range c.shown {
		b := &p.Buffers[i]
		if k == 0 {
			c.lower, c.upper = b.Lower, b.Upper
		}
		c.lower, c.upper = min(c.lower, b.Lower), max(c.upper, b.Upper)
		c.high = max(c.high, float64(c.offsets[i])+float64(b.Size))
	}
	c.open(w)
	return c
}

// stack packs the conflict as if there were no capacity, to show the excess.
func (c *canvas) stack(conflict []int) []int64 {
	offsets := make([]int64, len(c.p.Buffers))
	var sub []alloc.Buffer
	for _, i := range conflict {
		sub = append(sub, c.p.Buffers[i])
	}
	best, _ := alloc.Pack(context.Background(), alloc.Problem{Buffers: sub}, alloc.Options{}) // never fails without a capacity: p was packed before
	for k, i := range conflict {
		offsets[i] = best.Offsets[k]
	}
	return offsets
}

func (c *canvas) x(t float64) float64 {
	return drawMargin + (t-float64(c.lower))/(float64(c.upper)-float64(c.lower))*drawWidth
}

func (c *canvas) y(bytes float64) float64 { return drawMargin + drawHeight - bytes/c.high*drawHeight }

// open draws the empty page.
func (c *canvas) open(w io.Writer) {
	const wide, tall = drawWidth + 2*drawMargin, drawHeight + 2*drawMargin
	c.Picture = svg.New(w, svg.Page{Width: wide, Height: tall, Size: 11})
	c.Box(svg.Box{X: drawMargin, Y: drawMargin, W: drawWidth, H: drawHeight, Fill: "#f4f4f4"})
	c.Label(svg.Label{X: drawMargin, Y: tall - drawMargin/2, Text: fmt.Sprint("step ", c.lower)})
	c.Label(svg.Label{X: wide - drawMargin, Y: tall - drawMargin/2, Anchor: "end", Text: fmt.Sprint("step ", c.upper)})
}

func (c *canvas) buffer(i int) {
	b, off := &c.p.Buffers[i], c.offsets[i]
	x, top := c.x(float64(b.Lower)), c.y(float64(off)+float64(b.Size))
	width, height := c.x(float64(b.Upper))-x, c.y(float64(off))-top
	fill := fmt.Sprintf("hsl(%d,45%%,75%%)", 190+(i*47)%110)
	if c.bad[i] {
		fill = "#e66"
	}
	c.Box(svg.Box{X: x, Y: top, W: width, H: height, Fill: fill, Stroke: "#555", Line: 0.3,
		Title: fmt.Sprintf("%s: steps [%d, %d), bytes [%d, %d)", b.ID, b.Lower, b.Upper, off, off+b.Size)})
	if height >= 11 && width >= float64(labelWidth*(len(b.ID)+1)) {
		c.Label(svg.Label{X: x + width/2, Y: top + height/2 + 4, Anchor: "middle", Text: b.ID})
	}
}

// alive draws the sum of living bytes over time.
func (c *canvas) alive() {
	var changes []alloc.Level
	for _, i := range c.shown {
		b := &c.p.Buffers[i]
		changes = append(changes, alloc.Level{Time: float64(b.Lower), Bytes: b.Size}, alloc.Level{Time: float64(b.Upper), Bytes: -b.Size})
	}
	sums := alloc.Levels(changes)
	peak := alloc.Most(sums)
	for k := 0; k+1 < len(sums); k++ {
		color, y := "#222", c.y(math.Min(float64(sums[k].Bytes), c.high))
		if sums[k].Bytes >= peak-peak/100 {
			color = "#d00"
		}
		step := &svg.Path{Stroke: color, Width: 1.5}
		c.Path(step.MoveTo(c.x(sums[k].Time), y).HLineTo(c.x(sums[k+1].Time)).VLineTo(c.y(math.Min(float64(sums[k+1].Bytes), c.high))))
	}
}

// level draws a dashed line at a height, with its name at x.
func (c *canvas) level(bytes int64, name, color string, x float64, anchor string) {
	if bytes <= 0 {
		return
	}
	y := c.y(float64(bytes))
	line := &svg.Path{Stroke: color, Dash: "6 4"}
	c.Path(line.MoveTo(drawMargin, y).HLineTo(drawMargin + drawWidth))
	c.Label(svg.Label{X: x, Y: y - 4, Anchor: anchor, Fill: color, Text: fmt.Sprintf("%s %d", name, bytes)})
}
