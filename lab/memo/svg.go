package memo

import (
	"bufio"
	"fmt"
	"io"
)

// Plot writes an SVG of MFU against sequence length, one line per arm, up to the longest
// sequence that fits.
func Plot(w io.Writer, t Comparison) error {
	const left, top, width, height = 60.0, 64.0, 620.0, 330.0
	colours := []string{"#b9a3ab", "#a03a5c", "#c8871b", "#1f7a5a", "#1d4f91"}
	longest := 1
	for _, r := range t.Rows {
		longest = max(longest, r.Tokens)
	}
	x := func(tokens int) float64 { return left + width*float64(tokens)/float64(longest) }
	y := func(mfu float64) float64 { return top + height*(1-mfu) }
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 450" width="900" height="450" font-family="Inter, Helvetica, Arial, sans-serif">`+"\n")
	fmt.Fprintf(out, `<rect width="100%%" height="100%%" fill="#fcfcfa"/><text x="%g" y="26" font-size="17" font-weight="600" fill="#1b2733">Activations of long sequences</text>`+"\n", left)
	fmt.Fprintf(out, `<text x="%g" y="46" font-size="12" fill="#5c6b7a">MFU on %s at an efficiency of %.3g, host link %.3g GB/s</text>`+"\n", left, t.Machine.Name, t.Machine.Efficiency, t.Machine.Link/1e9)
	fmt.Fprintf(out, `<rect x="%g" y="%g" width="%g" height="%g" fill="#ffffff" stroke="#d9dde1"/>`+"\n", left, top, width, height)
	for tick := 0.0; tick <= 1; tick += 0.2 {
		fmt.Fprintf(out, `<path d="M%g %.1fh%g" stroke="#eceff1"/><text x="%g" y="%.1f" font-size="10" text-anchor="end" fill="#5c6b7a">%.0f %%</text>`+"\n", left, y(tick), width, left-6, y(tick)+3, 100*tick)
	}
	for _, r := range t.Rows {
		fmt.Fprintf(out, `<text x="%.1f" y="%g" font-size="10" text-anchor="middle" fill="#5c6b7a">%dK</text>`+"\n", x(r.Tokens), top+height+15, r.Tokens>>10)
	}
	fmt.Fprintf(out, `<text x="%g" y="%g" font-size="11" text-anchor="end" fill="#5c6b7a">tokens</text>`+"\n", left+width, top+height+32)
	for i, l := range t.Longest {
		colour, command := colours[i%len(colours)], 'M'
		fmt.Fprintf(out, `<path fill="none" stroke="%s" stroke-width="2" d="`, colour)
		for _, r := range t.Rows {
			if a := r.Arms[i]; a.Misfit == "" {
				fmt.Fprintf(out, "%c%.1f %.1f", command, x(r.Tokens), y(a.MFU))
				command = 'L'
			}
		}
		at := top + 20 + 22*float64(i)
		fmt.Fprintf(out, `"/><path d="M%g %gh16" stroke="%s" stroke-width="2"/><text x="%g" y="%g" font-size="11" fill="#3b4956">%s, up to %dK</text>`+"\n",
			left+width+14, at, colour, left+width+34, at+4, l.Name, l.Tokens>>10)
	}
	fmt.Fprintln(out, "</svg>")
	return out.Flush()
}
