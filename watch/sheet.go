package watch

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/draw/svg"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/internal/stat"
)

//go:embed report.html
var reportPage string

// colours of runs, told apart by people who do not tell red from green (Okabe and Ito, "Color Universal Design", 2008).
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#a6761d"}

// sheet is what the page that can be sent says.
type sheet struct {
	Columns   []string
	Rows      []sheetRow
	Charts    []picture
	Differing [][]string
	Roofs     []picture
	Latest    int
}

type sheetRow struct {
	Run, Machine string
	Colour       template.CSS
	Cells        []string
}

type picture struct {
	Name    string
	Picture template.HTML
}

// Columns are the heads of Cells.
func Columns() []string {
	return []string{"ranks", "precision", "steps", "tokens/s", "MFU", "of roof", "FLOP/B", "ridge", "step", "predicted", "planned", "reached", "loss", "validation"}
}

// Cells returns what a table has of a row besides the run and its machine.
func (r *Row) Cells() []string {
	or := func(known bool, text string) string {
		if !known {
			return ""
		}
		return text
	}
	return []string{
		fmt.Sprint(r.Ranks), r.Precision, fmt.Sprint(r.Steps), or(r.TokenRate > 0, fmt.Sprintf("%.0f", r.TokenRate)),
		or(r.MFU > 0, fmt.Sprintf("%.1f %%", 100*r.MFU)), or(r.Roof > 0, fmt.Sprintf("%.1f %%", 100*r.Roof)), or(r.Intensity > 0, fmt.Sprintf("%.3g", r.Intensity)),
		or(r.Ridge > 0, fmt.Sprintf("%.3g", r.Ridge)), or(r.Seconds > 0, stat.Seconds(r.Seconds)), or(r.Predicted > 0, stat.Seconds(r.Predicted)),
		or(r.Planned > 0, size.Format(r.Planned)), or(r.Reached > 0, size.Format(r.Reached)),
		or(stat.Finite(float64(r.Loss)), fmt.Sprintf("%.4f", r.Loss)), or(stat.Finite(float64(r.ValLoss)), fmt.Sprintf("%.4f", r.ValLoss)),
	}
}

// WritePage writes the runs as one file of HTML that needs nothing else: a table, curves, what differs, and rooflines.
func (s *Set) WritePage(w io.Writer) error {
	rows := s.Rows()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	p := sheet{Columns: Columns(), Latest: latestSteps}
	var list []*run
	for i, row := range rows {
		list = append(list, s.runs[slices.IndexFunc(s.runs, func(r *run) bool { return r.name == row.Run })])
		p.Rows = append(p.Rows, sheetRow{row.Run, row.Machine, template.CSS(colours[i%len(colours)]), row.Cells()})
	}
	for _, c := range []struct{ name, key string }{{"Loss", "loss"}, {"Tokens per second", "tokens_per_second"}} {
		text, err := overlaid(list, c.key)
		if err != nil {
			return err
		}
		p.Charts = append(p.Charts, picture{c.name, template.HTML(text)})
	}
	p.Differing = differing(list)
	for _, r := range list {
		if roof := r.readRoof(); roof != nil {
			var text strings.Builder
			if err := roof.Draw(&text); err != nil {
				return err
			}
			p.Roofs = append(p.Roofs, picture{r.name, template.HTML(text.String())})
		}
	}
	page, err := template.New("report").Parse(reportPage)
	if err != nil {
		return err
	}
	return page.Execute(w, p)
}

// differing lists the keys in which configurations differ, with their values by run, under a row of names.
func differing(list []*run) (table [][]string) {
	keys := map[string]bool{}
	head := []string{"key"}
	for _, r := range list {
		head = append(head, r.name)
		for k := range r.config {
			keys[k] = true
		}
	}
	for k := range keys {
		row := []string{k}
		for _, r := range list {
			row = append(row, r.config[k])
		}
		if len(slices.Compact(slices.Clone(row[1:]))) > 1 {
			table = append(table, row)
		}
	}
	slices.SortFunc(table, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	if len(table) == 0 {
		return nil
	}
	return slices.Insert(table, 0, head)
}

// Sizes of a chart in pixels.
const (
	chartWide, chartTall      = 960, 260
	chartLeft, chartRight     = 64, 950
	chartTop, chartLow        = 10, 232
	chartTicks, chartPixels   = 5, chartRight - chartLeft
	chartLetters, chartBelow  = 11, 16
	chartStroke, chartGrid    = 1.4, "#e6e8ec"
	chartLabel, chartFromAxis = "#666a70", 6
)

// overlaid draws a column of all runs by steps.
func overlaid(list []*run, key string) (string, error) {
	fromX, toX, fromY, toY := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, r := range list {
		for i, y := range r.history.columns[key] {
			if x := r.history.steps[i]; stat.Finite(y) {
				fromX, toX, fromY, toY = min(fromX, x), max(toX, x), min(fromY, y), max(toY, y)
			}
		}
	}
	if !stat.Finite(toX) {
		fromX, toX, fromY, toY = 0, 1, 0, 1
	}
	toX, toY = max(toX, fromX+1), max(toY, fromY+1e-9*math.Abs(fromY)+1e-12)
	x := func(v float64) float64 { return chartLeft + (v-fromX)/(toX-fromX)*(chartRight-chartLeft) }
	y := func(v float64) float64 { return chartLow - (v-fromY)/(toY-fromY)*(chartLow-chartTop) }
	var text strings.Builder
	p := svg.New(&text, svg.Page{Width: chartWide, Height: chartTall, Size: chartLetters})
	for i := range chartTicks {
		part := float64(i) / (chartTicks - 1)
		v, step := fromY+part*(toY-fromY), fromX+part*(toX-fromX)
		p.Path((&svg.Path{Stroke: chartGrid}).MoveTo(chartLeft, y(v)).HLineTo(chartRight))
		p.Label(svg.Label{X: chartLeft - chartFromAxis, Y: y(v) + chartFromAxis/2, Anchor: "end", Fill: chartLabel, Text: stat.Number(v, 3)})
		p.Label(svg.Label{X: x(step), Y: chartLow + chartBelow, Anchor: "middle", Fill: chartLabel, Text: fmt.Sprintf("%.0f", step)})
	}
	for i, r := range list {
		steps, column := r.history.steps, r.history.columns[key]
		line := &svg.Path{Stroke: colours[i%len(colours)], Width: chartStroke}
		drawn := false
		for _, at := range decimate(steps, column, fromX, toX, chartPixels) {
			switch {
			case !stat.Finite(column[at]):
				drawn = false // a gap
			case drawn:
				line.LineTo(x(steps[at]), y(column[at]))
			default:
				line.MoveTo(x(steps[at]), y(column[at]))
				drawn = true
			}
		}
		p.Path(line)
	}
	err := p.Close()
	return text.String(), err
}
