package pipeline

import (
	"fmt"
	"io"
	"math"

	"github.com/athanor-llm/athanor/draw/svg"
	"github.com/athanor-llm/athanor/schedule"
)

// Layout of a drawing, in pixels.
const (
	svgWidth  = 1200.0 // of the time axis
	svgLeft   = 54.0
	svgTop    = 64.0
	rowHeight = 26.0
	memHeight = 18.0 // of the activation curve below each row
	rowGap    = 7.0

	font = "Inter, Helvetica, Arial, sans-serif"
	grey = "#5c6b7a"
)

// palette returns the colours of a unit and its label: forwards blue, backwards green,
// weight gradients amber; in the other direction violet, rose and ochre. Later chunks are
// lighter.
func palette(pass schedule.Pass, dir, chunk int) (fill, ink string) {
	families := [2][3][4]string{
		{{"#1d4f91", "#5b8dcb", "#9dbde4", "#cfdff2"}, {"#1f7a5a", "#5aa98a", "#9fd0bb", "#cfe8dd"}, {"#c8871b", "#dfae5c", "#edcf9c", "#f6e6cb"}},
		{{"#5b3a8e", "#9377be", "#bfaedb", "#ded5ec"}, {"#a03a5c", "#c87791", "#e0afbf", "#efd6de"}, {"#8a6d1d", "#b79c55", "#d5c494", "#e9dfc4"}},
	}
	kind := 1
	switch pass {
	case schedule.F:
		kind = 0
	case schedule.W:
		kind = 2
	}
	ink = "#ffffff"
	if chunk > 1 {
		ink = "#24323f"
	}
	return families[dir][kind][min(chunk, 3)], ink
}

// WriteSVG writes a drawing of the timeline: for each rank a row of units, and below it a curve
// of the activations that the rank holds. Units too narrow to be told apart are merged, so
// that the file stays small for any number of micro-batches. The error is w's.
func WriteSVG(w io.Writer, s *schedule.Schedule, t *schedule.Timeline, c schedule.Costs) error {
	height := svgTop + float64(s.Ranks)*(rowHeight+memHeight+rowGap) + 64
	page := svg.Page{Width: svgLeft + svgWidth + 90, Height: height, Font: font, Paper: "#fcfcfa"}
	d := &drawing{Picture: svg.New(w, page), s: s, t: t, c: c, scale: svgWidth / t.Makespan, peak: t.Peak()}
	d.Label(svg.Label{X: svgLeft, Y: 26, Size: 17, Bold: true, Fill: "#1b2733", Text: s.Name})
	shape := schedule.Request{Ranks: s.Ranks, Micros: s.Micros, Chunks: s.Chunks, Slices: s.Slices}.Shape()
	d.Label(svg.Label{X: svgLeft, Y: 46, Size: 12, Fill: grey, Text: fmt.Sprintf("%s: makespan %.6g, bubble %.1f %%, peak %.4g %s, %d messages, weights x%d",
		shape, t.Makespan, 100*t.Bubble(), t.Peak(), peakUnit(s), t.Messages, s.WeightCopies())})
	for r := range s.Ranks {
		d.background(r)
	}
	d.axis(height - 56)
	for r := range s.Ranks {
		d.row(r)
	}
	d.legend(height - 30)
	return d.Close()
}

func peakUnit(s *schedule.Schedule) string {
	if s.Chunks > 1 {
		return "chunks"
	}
	return "micro-batches"
}

type drawing struct {
	*svg.Picture
	s     *schedule.Schedule
	t     *schedule.Timeline
	c     schedule.Costs
	scale float64
	peak  float64 // of all ranks
}

func (d *drawing) x(time float64) float64 { return svgLeft + time*d.scale }

func (d *drawing) top(r int) float64 { return svgTop + float64(r)*(rowHeight+memHeight+rowGap) }

// background draws a rank's name and the empty row, whose colour remains where the rank
// waits.
func (d *drawing) background(r int) {
	y := d.top(r)
	d.Label(svg.Label{X: svgLeft - 8, Y: y + rowHeight*.68, Size: 12, Anchor: "end", Fill: grey, Text: fmt.Sprint("r", r)})
	d.Box(svg.Box{X: svgLeft, Y: y, W: svgWidth, H: rowHeight, Fill: "#eceae4"})
}

// row draws the units and the curve of a rank. The two units of an overlapped pair are
// drawn above each other.
func (d *drawing) row(r int) {
	y := d.top(r)
	order, begin, end := d.s.Orders[r], d.t.Start[r], d.t.End[r]
	for j := 0; j < len(order); {
		from, to, n := begin[j], end[j], 1
		top, high := y, rowHeight
		paired := order[j].Joined || j+1 < len(order) && order[j+1].Joined
		if paired {
			high = rowHeight / 2
			if order[j].Joined {
				top += rowHeight / 2
			}
		}
		for !paired && j+n < len(order) && order[j+n].Pass == order[j].Pass && d.chunk(order[j+n]) == d.chunk(order[j]) &&
			(end[j+n]-from)*d.scale < 1.5 && begin[j+n] == end[j+n-1] {
			to = end[j+n]
			n++
		}
		d.block(order[j], d.x(from), top, (to-from)*d.scale, high)
		j += n
	}
	d.curve(r, y+rowHeight+1)
}

func (d *drawing) chunk(u schedule.Unit) [2]int { return [2]int{u.Dir, u.Stage / d.s.Ranks} }

func (d *drawing) block(u schedule.Unit, x, y, width, height float64) {
	fill, ink := palette(u.Pass, u.Dir, u.Stage/d.s.Ranks)
	gap := math.Min(1, width/6)
	d.Box(svg.Box{X: x, Y: y, W: width - gap, H: height - .5, Round: math.Min(2.5, width/5), Fill: fill})
	label := fmt.Sprint(u.Micro)
	if d.s.Slices > 1 {
		label += schedule.SliceName(u.Slice)
	}
	if size := math.Min(11, height-2); width > float64(len(label))*size*.62+2 {
		d.Label(svg.Label{X: x + (width-gap)/2, Y: y + height/2 + size*.36, Size: math.Round(size), Anchor: "middle", Fill: ink, Text: label})
	}
}

// curve draws the activations that rank r holds; its full height is the largest peak of
// all ranks.
func (d *drawing) curve(r int, y float64) {
	if d.peak == 0 {
		return
	}
	base := y + memHeight - 2
	held := &svg.Path{Fill: "#b9c4cf", Opacity: .55}
	held.MoveTo(svgLeft, base)
	sum, drawn := 0.0, -1.0
	for j, u := range d.s.Orders[r] {
		at := d.t.Start[r][j]
		if u.Pass != schedule.F {
			at = d.t.End[r][j]
		}
		sum += d.c.Memory(u) / float64(d.s.Slices)
		if x := d.x(at); x-drawn >= .4 {
			held.HLineTo(x).VLineTo(base - sum/d.peak*(memHeight-4))
			drawn = x
		}
	}
	d.Path(held.VLineTo(base).ClosePath())
	d.Label(svg.Label{X: svgLeft + svgWidth + 8, Y: base, Size: 10, Fill: grey, Text: fmt.Sprintf("peak %.4g", d.t.Peaks[r])})
}

// axis draws about ten ticks, at round times.
func (d *drawing) axis(y float64) {
	step := math.Pow(10, math.Floor(math.Log10(d.t.Makespan/10)))
	for _, f := range []float64{2, 2.5, 2} {
		if d.t.Makespan/step > 16 {
			step *= f
		}
	}
	for i := 0.0; i*step <= d.t.Makespan*1.0001; i++ {
		x := d.x(i * step)
		tick := &svg.Path{Stroke: "#c9ced3", Width: .6, Dash: "2 3"}
		d.Path(tick.MoveTo(x, svgTop-6).VLineTo(y - 10))
		d.Label(svg.Label{X: x, Y: y, Size: 10, Anchor: "middle", Fill: grey, Text: fmt.Sprintf("%.4g", i*step)})
	}
}

// legend names the colours that occur.
func (d *drawing) legend(y float64) {
	seen := map[[3]int]bool{}
	for _, order := range d.s.Orders {
		for _, u := range order {
			pass := u.Pass
			if pass == schedule.Bx {
				pass = schedule.B
			}
			seen[[3]int{int(pass), u.Dir, min(3, u.Stage/d.s.Ranks)}] = true
		}
	}
	split, mixed := d.s.Splits()
	backward := "backward"
	if split && !mixed {
		backward = "input gradient"
	}
	names := map[schedule.Pass]string{schedule.F: "forward", schedule.B: backward, schedule.W: "weight gradient"}
	x := svgLeft
	for _, pass := range []schedule.Pass{schedule.F, schedule.B, schedule.W} {
		for dir := range d.s.Directions() {
			for chunk := range min(d.s.Chunks, 4) {
				if !seen[[3]int{int(pass), dir, chunk}] {
					continue
				}
				text := names[pass]
				if d.s.Chunks > 1 {
					text += fmt.Sprintf(" %d", chunk)
				}
				if dir == 1 {
					text += " (up)"
				}
				if x+26+6.2*float64(len(text)) > svgLeft+svgWidth { // the line is full
					x, y = svgLeft, y+18
				}
				fill, _ := palette(pass, dir, chunk)
				d.Box(svg.Box{X: x, Y: y - 9, W: 11, H: 11, Round: 2, Fill: fill})
				d.Label(svg.Label{X: x + 15, Y: y, Size: 11, Fill: "#3b4956", Text: text})
				x += 26 + 6.2*float64(len(text))
			}
		}
	}
}
