package pack

import (
	"bufio"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/athanor-llm/athanor/alloc"
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
	c.open()
	for _, i := range c.shown {
		c.buffer(i)
	}
	c.alive()
	c.level(p.Capacity, "capacity", "#a00", drawMargin, "start")
	if s != nil {
		c.level(s.Height, "height", "#333", drawMargin+drawWidth, "end")
	}
	fmt.Fprintln(c.out, "</svg>")
	return c.out.Flush()
}

type canvas struct {
	out          *bufio.Writer
	p            alloc.Problem
	offsets      []int64
	shown        []int // indices drawn
	bad          map[int]bool
	lower, upper int64   // time drawn
	high         float64 // bytes drawn
}

func newCanvas(w io.Writer, p alloc.Problem, s *alloc.Solution, conflict []int) *canvas {
	c := &canvas{out: bufio.NewWriter(w), p: p, bad: make(map[int]bool), lower: 0, upper: 1, high: float64(max(p.Capacity, 1))}
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

func (c *canvas) open() {
	const w, h = drawWidth + 2*drawMargin, drawHeight + 2*drawMargin
	fmt.Fprintf(c.out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", w, h)
	fmt.Fprintf(c.out, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", w, h)
	fmt.Fprintf(c.out, `<rect x="%d" y="%d" width="%d" height="%d" fill="#f4f4f4"/>`+"\n", drawMargin, drawMargin, drawWidth, drawHeight)
	fmt.Fprintf(c.out, `<text x="%d" y="%d">step %d</text><text x="%d" y="%d" text-anchor="end">step %d</text>`+"\n",
		drawMargin, h-drawMargin/2, c.lower, w-drawMargin, h-drawMargin/2, c.upper)
}

func (c *canvas) buffer(i int) {
	b, off := &c.p.Buffers[i], c.offsets[i]
	x, width := c.x(float64(b.Lower)), c.x(float64(b.Upper))-c.x(float64(b.Lower))
	top := c.y(float64(off) + float64(b.Size))
	height := c.y(float64(off)) - top
	fill := fmt.Sprintf("hsl(%d,45%%,75%%)", 190+(i*47)%110)
	if c.bad[i] {
		fill = "#e66"
	}
	fmt.Fprintf(c.out, `<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s" stroke="#555" stroke-width="0.3"><title>%s: steps [%d, %d), bytes [%d, %d)</title></rect>`+"\n",
		x, top, width, height, fill, escape(b.ID), b.Lower, b.Upper, off, off+b.Size)
	if height >= 11 && width >= float64(labelWidth*(len(b.ID)+1)) {
		fmt.Fprintf(c.out, `<text x="%.2f" y="%.2f" text-anchor="middle">%s</text>`+"\n", x+width/2, top+height/2+4, escape(b.ID))
	}
}

// escape returns a name as XML text; EscapeText replaces invalid characters.
func escape(name string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(name)) // never fails on a builder
	return b.String()
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
		fmt.Fprintf(c.out, `<path d="M%.2f %.2fH%.2fV%.2f" fill="none" stroke="%s" stroke-width="1.5"/>`+"\n",
			c.x(sums[k].Time), y, c.x(sums[k+1].Time), c.y(math.Min(float64(sums[k+1].Bytes), c.high)), color)
	}
}

// level draws a dashed line at a height, with its name at x.
func (c *canvas) level(bytes int64, name, color string, x int, anchor string) {
	if bytes <= 0 {
		return
	}
	y := c.y(float64(bytes))
	fmt.Fprintf(c.out, `<path d="M%d %.2fh%d" stroke="%s" stroke-dasharray="6 4"/><text x="%d" y="%.2f" text-anchor="%s" fill="%s">%s %d</text>`+"\n",
		drawMargin, y, drawWidth, color, x, y-4, anchor, color, name, bytes)
}
