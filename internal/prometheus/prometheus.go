// Package prometheus writes numbers in Prometheus' text format, version 0.0.4, which servers of metrics are asked for
// over HTTP:
//
//	# HELP athanor_loss Loss of the latest step.
//	# TYPE athanor_loss gauge
//	athanor_loss{run="first"} 2.5
//
// Names of counters end in _total, units are seconds, bytes and ratios. The samples of one metric come together, as the
// format demands, whatever the order in which they are added.
package prometheus

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ContentType is that of an answer.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Kind is what a metric does over time.
type Kind string

const (
	Counter Kind = "counter" // grows, until its process begins anew
	Gauge   Kind = "gauge"   // rises and falls
)

// Metric describes a number.
type Metric struct {
	Name string // letters, digits and _
	Kind Kind
	Help string
}

// Label is a name and a value, which may be any text.
type Label struct{ Name, Value string }

// Page is what is written at once.
type Page struct{ families []*family }

// family is the samples of one metric.
type family struct {
	Metric
	samples bytes.Buffer
}

// Add adds a sample.
func (p *Page) Add(m Metric, x float64, labels ...Label) {
	i := slices.IndexFunc(p.families, func(f *family) bool { return f.Name == m.Name })
	if i < 0 {
		i = len(p.families)
		p.families = append(p.families, &family{Metric: m})
	}
	b := &p.families[i].samples
	b.WriteString(m.Name)
	for k, l := range labels {
		fmt.Fprintf(b, `%c%s="%s"`, "{,"[min(k, 1)], l.Name, escaped.Replace(strings.ToValidUTF8(l.Value, "\uFFFD")))
	}
	if len(labels) > 0 {
		b.WriteByte('}')
	}
	b.WriteByte(' ')
	b.WriteString(format(x))
	b.WriteByte('\n')
}

// escaped writes the value of a label.
var escaped = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// format writes a number.
func format(x float64) string {
	switch {
	case math.IsNaN(x):
		return "NaN"
	case math.IsInf(x, 1):
		return "+Inf"
	case math.IsInf(x, -1):
		return "-Inf"
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

// WriteTo writes all samples, metrics in the order in which they were first added.
func (p *Page) WriteTo(w io.Writer) (n int64, err error) {
	var out bytes.Buffer
	for _, f := range p.families {
		fmt.Fprintf(&out, "# HELP %s %s\n# TYPE %s %s\n", f.Name, strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(f.Help), f.Name, f.Kind)
		out.Write(f.samples.Bytes())
	}
	return out.WriteTo(w)
}
