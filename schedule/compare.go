package schedule

// Compared is one line of a comparison: a schedule, or the reason why it cannot be.
type Compared struct {
	Report
	Why string `json:"why,omitempty"` // why this schedule cannot be had with these numbers
}

// Compare runs all named schedules on the same work: the times in q are those of one stage of 1/ranks of the model for one
// whole micro-batch, and a schedule with v chunks and k slices runs units that take 1/(vk) of them. Chunks and slices of
// q hold for the schedules that can choose; a cap of q holds for those that look at memory, in stages.
func Compare(q Request) ([]Compared, error) {
	shape := q
	shape.Chunks, shape.Slices, shape.DepthFirst = max(1, q.Chunks), max(1, q.Slices), max(1, q.DepthFirst)
	if err := checkShape(shape); err != nil {
		return nil, err
	}
	if err := q.Costs.checkTimes(); err != nil {
		return nil, err
	}
	var list []Compared
	for _, g := range catalogue() {
		line := Compared{Report: Report{Name: g.name, Ranks: q.Ranks, Microbatches: q.Micros}}
		s, c, err := g.scaled(q)
		var t *Timeline
		if err == nil {
			t, err = s.Simulate(c)
		}
		if err != nil {
			line.Why = err.Error()
			if usage, ok := err.(*UsageError); ok {
				line.Why = usage.Why
			}
		} else {
			line.Report = NewReport(s, t, c, false)
		}
		list = append(list, line)
	}
	return list, nil
}

// scaled makes the schedule with unit times of its own grain.
func (g *generator) scaled(q Request) (*Schedule, Costs, error) {
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
		return nil, Costs{}, err
	}
	grain := 1 / float64(full.Chunks*full.Slices)
	full.Costs.Times = Times{q.Costs.F * grain, q.Costs.B * grain, q.Costs.W * grain}
	full.Costs.Pair *= grain
	full.Costs.Stages, full.Costs.Slices = nil, nil
	full.Cap *= float64(full.Chunks)
	s, err := g.make(full)
	return s, full.Costs, err
}
