// Package alert says when the numbers of a training run are unusual. A rule is a pure function of the latest steps; rules
// are a table (rules.go), to which a user adds comparisons with a number (compare.go). An alert fires once, and is
// resolved once its reason is gone:
//
//	w, err := alert.New(alert.Options{Rules: []string{"tokens_per_second < 1000 for 20"}})
//	...
//	for _, e := range w.Add(point) { // after each step
//		fmt.Println(e.Text) // such as: leak: bytes grow by 4096 with each step; memory ends at step 7340
//	}
//
// How rarely the rules cry wolf is a law: of runs in which nothing happens, one in twenty may see an alert within a
// thousand steps (TestFalseAlarms).
//
// Known weakness: medians are those of the latest steps, so what becomes slow or large over thousands of steps is not seen.
package alert

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Point is what is known after a step. Sizes are bytes, times seconds.
type Point struct {
	Step      int
	Loss      float64
	ValLoss   float64 // NaN: there was no validation
	GradNorm  float64
	Rate      float64 // tokens per second
	MFU       float64
	Seconds   float64
	Held      int64   // bytes that the process holds at the end of the step; 0: unknown
	Room      int64   // bytes that are left before memory ends; 0: unknown
	Memory    []Tier  // of each rank
	Stalls    []Stall // of a measured step; empty: none was measured
	ValBroken bool
	Again     *Again // nil: nobody has planned again
}

// Again is what planning again has found for device memory that is not used; "": nothing.
type Again struct{ Brings string }

// Tier is a rank's memory of one tier.
type Tier struct {
	Rank             int
	Name             string
	Planned, Reached int64
	Capacity         int64 // 0: unknown
}

// Stall is the share of a step in which computing waited for a stream.
type Stall struct {
	On                  string
	Measured, Predicted float64
	Slower              float64 // how many times as long as predicted the stream was busy; 0: hardly ever
}

// Event says that an alert fires, or that it is resolved.
type Event struct {
	Rule   string `json:"rule"`
	Step   int    `json:"step"`
	Firing bool   `json:"firing"`
	Text   string `json:"text"`
}

// Options are what a user may say of alerts.
type Options struct {
	Rules []string // comparisons, such as "mfu < 0.3 for 20"
	Off   []string // names of rules that are not wanted
}

// mostSteps is the longest history that a rule may look at.
const mostSteps = 256

// Watcher follows one run.
type Watcher struct {
	rules  []rule
	firing []bool
	last   []Point // at least the latest steps, the newest last
}

// New returns a watcher with the built-in rules but those that are off, and the user's.
func New(o Options) (*Watcher, error) {
	w := &Watcher{}
	for _, r := range builtin {
		if !slices.Contains(o.Off, r.name) {
			w.rules = append(w.rules, r)
		}
	}
	for _, name := range o.Off {
		if !slices.ContainsFunc(builtin[:], func(r rule) bool { return r.name == name }) {
			return nil, fmt.Errorf("there is no rule %q; hint: use one of %s", name, strings.Join(Names(), ", "))
		}
	}
	for _, text := range o.Rules {
		r, err := parseComparison(text)
		if err != nil {
			return nil, err
		}
		w.rules = append(w.rules, r)
	}
	w.firing = make([]bool, len(w.rules))
	return w, nil
}

// Names returns the names of the built-in rules.
func Names() (list []string) {
	for _, r := range builtin {
		list = append(list, r.name)
	}
	return list
}

// Silent is told that a step has not ended after much more than its usual time, and returns what begins to fire.
func (w *Watcher) Silent(step int, after time.Duration) []Event {
	i := slices.IndexFunc(w.rules, func(r rule) bool { return r.name == silentRule })
	if i < 0 || w.firing[i] {
		return nil
	}
	w.firing[i] = true
	text := fmt.Sprintf("%s: step %d has not ended after %v; hint: look for a disk, a link or a GPU that does not answer", silentRule, step, after.Round(time.Second))
	return []Event{{silentRule, step, true, text}}
}

// Add takes a step, and returns what begins to fire and what is resolved.
func (w *Watcher) Add(p Point) (events []Event) {
	if len(w.last) == 2*mostSteps { // seldom, so that a step moves little
		w.last = w.last[:copy(w.last, w.last[mostSteps:])]
	}
	w.last = append(w.last, p)
	last := w.last[max(0, len(w.last)-mostSteps):]
	for i, r := range w.rules {
		text := r.judge(last)
		if firing := text != ""; firing != w.firing[i] {
			if !firing {
				text = "is over"
			}
			w.firing[i] = firing
			events = append(events, Event{r.name, p.Step, firing, r.name + ": " + text})
		}
	}
	return events
}
