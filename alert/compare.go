package alert

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// values are what comparisons may name: the fields of metrics.jsonl that change.
var values = []struct {
	name string
	of   func(p *Point) float64
}{
	{"loss", func(p *Point) float64 { return p.Loss }},
	{"val_loss", func(p *Point) float64 { return p.ValLoss }},
	{"grad_norm", func(p *Point) float64 { return p.GradNorm }},
	{"tokens_per_second", func(p *Point) float64 { return p.Rate }},
	{"mfu", func(p *Point) float64 { return p.MFU }},
	{"step_seconds", func(p *Point) float64 { return p.Seconds }},
}

// parseComparison reads a rule such as "mfu < 0.3 for 20": the name of a value, < or >, a number, and for how many steps
// in turn it has to hold; without "for", one. Steps that have no such value do not count.
func parseComparison(text string) (rule, error) {
	words := strings.Fields(text)
	fail := func(why string) (rule, error) {
		return rule{}, fmt.Errorf("the rule %q: %s; hint: write rules such as \"mfu < 0.3 for 20\"", text, why)
	}
	if len(words) != 3 && (len(words) != 5 || words[3] != "for") {
		return fail("it is no comparison")
	}
	at := slices.IndexFunc(values, func(v struct {
		name string
		of   func(p *Point) float64
	}) bool {
		return v.name == words[0]
	})
	if at < 0 {
		var names []string
		for _, v := range values {
			names = append(names, v.name)
		}
		return fail(words[0] + " is none of " + strings.Join(names, ", "))
	}
	if words[1] != "<" && words[1] != ">" {
		return fail(words[1] + " is neither < nor >")
	}
	limit, err := strconv.ParseFloat(words[2], 64)
	if err != nil || math.IsNaN(limit) {
		return fail(words[2] + " is not a number")
	}
	steps := 1
	if len(words) == 5 {
		if steps, err = strconv.Atoi(words[4]); err != nil || steps < 1 || steps > mostSteps {
			return fail(fmt.Sprintf("%s is not a number of steps from 1 to %d", words[4], mostSteps))
		}
	}
	value, less := values[at].of, words[1] == "<"
	return rule{text, func(last []Point) string {
		held := 0
		for i := len(last) - 1; i >= 0 && held < steps; i-- {
			x := value(&last[i])
			if math.IsNaN(x) {
				continue
			}
			if less && x >= limit || !less && x <= limit {
				return ""
			}
			held++
		}
		if held < steps {
			return ""
		}
		return fmt.Sprintf("%s is %.4g", words[0], latest(last, value))
	}}, nil
}

// latest returns the last value that is there.
func latest(last []Point, value func(*Point) float64) float64 {
	for i := len(last) - 1; i >= 0; i-- {
		if x := value(&last[i]); !math.IsNaN(x) {
			return x
		}
	}
	return math.NaN()
}
