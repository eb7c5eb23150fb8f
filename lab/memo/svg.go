package memo

import (
	"fmt"
	"io"

	"github.com/athanor-llm/athanor/draw/svg"
)

// Plot writes an SVG of MFU against sequence length, one line per arm, up to the longest
// sequence that fits.
func Plot(w io.Writer, t Comparison) error {
	const left, top, width, height, grey = 60.0, 64.0, 620.0, 330.0, "#5c6b7a"
	colours := []string{"#b9a3ab", "#a03a5c", "#c8871b", "#1f7a5a", "#1d4f91"}
	longest := 1
	for _, r := range t.Rows {
		longest = max(longest, r.Tokens)
	}
	x := func(tokens int) float64 { return left + width*float64(tokens)/float64(longest) }
	y := func(mfu float64) float64 { return top + height*(1-mfu) }
	p := svg.New(w, svg.Page{Width: 900, Height: 450, Font: "Inter, Helvetica, Arial, sans-serif", Paper: "#fcfcfa"})
	p.Label(svg.Label{X: left, Y: 26, Size: 17, Bold: true, Fill: "#1b2733", Text: "Activations of long sequences"})
	p.Label(svg.Label{X: left, Y: 46, Size: 12, Fill: grey, Text: fmt.Sprintf("MFU on %s at an efficiency of %.3g, host link %.3g GB/s", t.Machine.Name, t.Machine.Efficiency, t.Machine.Link/1e9)})
	p.Box(svg.Box{X: left, Y: top, W: width, H: height, Fill: "#ffffff", Stroke: "#d9dde1"})
	for tick := 0.0; tick <= 1; tick += 0.2 {
		line := &svg.Path{Stroke: "#eceff1"}
		p.Path(line.MoveTo(left, y(tick)).HLineTo(left + width))
		p.Label(svg.Label{X: left - 6, Y: y(tick) + 3, Size: 10, Anchor: "end", Fill: grey, Text: fmt.Sprintf("%.0f %%", 100*tick)})
	}
	for _, r := range t.Rows {
		p.Label(svg.Label{X: x(r.Tokens), Y: top + height + 15, Size: 10, Anchor: "middle", Fill: grey, Text: fmt.Sprintf("%dK", r.Tokens>>10)})
	}
	p.Label(svg.Label{X: left + width, Y: top + height + 32, Size: 11, Anchor: "end", Fill: grey, Text: "tokens"})
	for i, l := range t.Longest {
		colour := colours[i%len(colours)]
		line, key := &svg.Path{Stroke: colour, Width: 2}, &svg.Path{Stroke: colour, Width: 2}
		draw := line.MoveTo
		for _, r := range t.Rows {
			if a := r.Arms[i]; a.Misfit == "" {
				draw(x(r.Tokens), y(a.MFU))
				draw = line.LineTo
			}
		}
		p.Path(line)
		at := top + 20 + 22*float64(i)
		p.Path(key.MoveTo(left+width+14, at).HLineTo(left + width + 30))
		p.Label(svg.Label{X: left + width + 34, Y: at + 4, Size: 11, Fill: "#3b4956", Text: fmt.Sprintf("%s, up to %dK", l.Name, l.Tokens>>10)})
	}
	return p.Close()
}
