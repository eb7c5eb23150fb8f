package schedule

import (
	"cmp"
	"errors"
	"fmt"
)

// Compared is one line of a comparison: a schedule, or the reason why it cannot be.
type Compared struct {
	Report
	Summary string `json:"summary"`       // the schedule in a few words
	Why     string `json:"why,omitempty"` // why this schedule cannot be had with these numbers
}

// Compare runs all named schedules, and a searched one, on the same work: the times in q are those of one stage of 1/ranks
// of the model for one whole micro-batch, and a schedule with v chunks and k slices runs units that take 1/(vk) of them.
// Chunks and slices of q hold for the schedules that can choose; the cap is in stages.
func Compare(q Request, effort int) ([]Compared, error) {
	shape := q
	shape.Chunks, shape.Slices, shape.DepthFirst = cmp.Or(q.Chunks, 1), cmp.Or(q.Slices, 1), cmp.Or(q.DepthFirst, 1)
	if err := checkShape(shape); err != nil {
		return nil, err
	}
	if err := q.Costs.checkTimes(); err != nil {
		return nil, err
	}
	var list []Compared
	for _, g := range catalogue() {
		line := Compared{Report: Report{Name: g.name, Ranks: q.Ranks, Microbatches: q.Micros}, Summary: g.summary}
		if report, err := g.compared(q); err == nil {
			line.Report = report
		} else {
			line.Why = reason(err)
		}
		list = append(list, line)
	}
	line := Compared{Report: Report{Name: "search", Ranks: q.Ranks, Microbatches: q.Micros}, Summary: "the best order that is found for these numbers"}
	for _, chunks := range []int{1, 2} { // both grains; the faster wins
		goal := Goal{Request: Request{Ranks: q.Ranks, Micros: q.Micros, Chunks: chunks, Costs: q.Costs.scaled(chunks), Cap: q.Cap * float64(chunks)}, Effort: effort}
		found, err := Search(goal)
		if err != nil {
			if line.Makespan == 0 {
				line.Why = reason(err)
			}
		} else if line.Makespan == 0 || found.Timeline.Makespan < line.Makespan*(1-1e-9) {
			line.Why, line.Report = "", NewReport(found.Schedule, found.Timeline, goal.Costs, false)
		}
	}
	return append(list, line), nil
}

// reason is why a schedule cannot be had, without the hint.
func reason(err error) string {
	var usage *UsageError
	var order *OrderError
	switch {
	case errors.As(err, &usage):
		return usage.Why
	case errors.As(err, &order):
		return fmt.Sprintf("rank %d %s", order.Rank, order.Reason)
	}
	return err.Error()
}

// compared makes and runs the schedule with unit times of its own grain.
func (g *generator) compared(q Request) (Report, error) {
	if g.chunks[1] < many { // it has no choice
		q.Chunks = 0
	}
	if g.slices[1] < many {
		q.Slices = 0
	}
	if g.name != "breadth-first" {
		q.DepthFirst = 0
	}
	full, err := g.complete(q)
	if err != nil {
		return Report{}, err
	}
	full.Costs = q.Costs.scaled(full.Chunks * full.Slices)
	full.Cap *= float64(full.Chunks)
	s, err := g.make(full)
	if err != nil {
		return Report{}, err
	}
	if full.Cap > 0 {
		if err := s.CheckCap(full.Costs, full.Cap); err != nil {
			return Report{}, err
		}
	}
	t, err := s.Simulate(full.Costs)
	if err != nil {
		return Report{}, err
	}
	return NewReport(s, t, full.Costs, false), nil
}

// scaled are the costs of units that are 1/grain of a stage and micro-batch. A message is as long for a slice: what it
// saves in bytes is left out.
func (c Costs) scaled(grain int) Costs {
	g := 1 / float64(grain)
	c.Times = Times{c.F * g, c.B * g, c.W * g}
	c.Pair *= g
	c.Stages, c.Slices = nil, nil
	return c
}
