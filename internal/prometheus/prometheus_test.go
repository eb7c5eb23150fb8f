package prometheus_test

import (
	"math"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/prometheus"
)

// TestText: the page is what the format's description says, byte for byte: samples of a metric together, though they
// were not added so; help, label values and numbers that need escapes. tools/prometheus_check.py reads such a page with
// Prometheus' own parser.
func TestText(t *testing.T) {
	var p prometheus.Page
	bytes := prometheus.Metric{Name: "a_bytes", Kind: prometheus.Gauge, Help: "Two\nlines and a \\."}
	steps := prometheus.Metric{Name: "a_steps_total", Kind: prometheus.Counter, Help: "Steps."}
	p.Add(bytes, 1.5, prometheus.Label{Name: "run", Value: "a\"b\\c\nd"}, prometheus.Label{Name: "tier", Value: "\xff"})
	p.Add(steps, 1e21)
	p.Add(bytes, math.Inf(-1))
	p.Add(bytes, math.NaN())
	p.Add(bytes, math.Inf(1))
	var text strings.Builder
	if _, err := p.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	want := `# HELP a_bytes Two\nlines and a \\.
# TYPE a_bytes gauge
a_bytes{run="a\"b\\c\nd",tier="` + "\uFFFD" + `"} 1.5
a_bytes -Inf
a_bytes NaN
a_bytes +Inf
# HELP a_steps_total Steps.
# TYPE a_steps_total counter
a_steps_total 1e+21
`
	if text.String() != want {
		t.Errorf("the page is\n%s", text.String())
	}
}
