package pipeline

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/schedule"
)

// Compared is one line of a comparison: a schedule's report, or the reason why there is
// none.
type Compared struct {
	Report
	Summary string `json:"summary"`       // the schedule in a few words
	Why     string `json:"why,omitempty"` // why the schedule does not exist for these numbers
}

// Compare simulates all named schedules and a searched one on the same work.
//
// q's times are those of 1/ranks of the model for one whole micro-batch; the units of a
// schedule with v chunks and k slices take 1/(vk) of them. q's cap is in the same parts
// of the model. q's chunks and slices apply to schedules that have a choice. effort is
// Goal.Effort of each of the two searches. The error is a *UsageError.
func Compare(q schedule.Request, effort int) ([]Compared, error) {
	shape := q
	shape.Chunks, shape.Slices, shape.DepthFirst = cmp.Or(q.Chunks, 1), cmp.Or(q.Slices, 1), cmp.Or(q.DepthFirst, 1)
	if err := shape.Check(); err != nil {
		return nil, err
	}
	if err := q.Costs.CheckTimes(); err != nil {
		return nil, err
	}
	var list []Compared
	for _, g := range schedule.Catalogue() {
		line := Compared{Report: Report{Name: g.Name, Ranks: q.Ranks, Microbatches: q.Micros}, Summary: g.Summary}
		if report, err := compared(g, q); err == nil {
			line.Report = report
		} else {
			line.Why = reason(err)
		}
		list = append(list, line)
	}
	line := Compared{Report: Report{Name: "search", Ranks: q.Ranks, Microbatches: q.Micros}, Summary: "the best order found for these numbers"}
	for _, chunks := range []int{1, 2} { // the faster of the two is shown
		goal := Goal{Request: schedule.Request{Ranks: q.Ranks, Micros: q.Micros, Chunks: chunks, Costs: scaled(q.Costs, chunks), Cap: q.Cap * float64(chunks)}, Effort: effort}
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

// reason returns an error's text without the hint.
func reason(err error) string {
	var usage *schedule.UsageError
	var order *schedule.OrderError
	switch {
	case errors.As(err, &usage):
		return usage.Why
	case errors.As(err, &order):
		return fmt.Sprintf("rank %d %s", order.Rank, order.Reason)
	}
	return err.Error()
}

// compared generates and simulates the schedule with the costs of its own, smaller units.
func compared(g schedule.Generator, q schedule.Request) (Report, error) {
	if g.Chunks[1] < schedule.Many { // the schedule has no choice
		q.Chunks = 0
	}
	if g.Slices[1] < schedule.Many {
		q.Slices = 0
	}
	if g.Name != "breadth-first" {
		q.DepthFirst = 0
	}
	full, err := g.Complete(q)
	if err != nil {
		return Report{}, err
	}
	full.Costs = scaled(q.Costs, full.Chunks*full.Slices)
	full.Cap *= float64(full.Chunks)
	s, err := g.Make(full)
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

// scaled returns the costs of units of 1/grain of the work. The time of a message stays
// the same: chunks send as many bytes, and that slices send fewer is neglected.
func scaled(c schedule.Costs, grain int) schedule.Costs {
	g := 1 / float64(grain)
	c.Times = schedule.Times{F: c.F * g, B: c.B * g, W: c.W * g}
	c.Pair *= g
	c.Stages, c.Slices = nil, nil
	return c
}
