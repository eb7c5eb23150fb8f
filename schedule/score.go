package schedule

// A Score is what is minimised: first the objective, then the sum of the other objective
// (of makespan and longest span) and the mean end of the ranks.
type Score struct{ First, Second float64 }

// Less reports whether a is better than b by more than rounding.
func (a Score) Less(b Score) bool {
	const eps = 1e-9
	if d := a.First - b.First; d < -eps*(1+b.First) || d > eps*(1+b.First) {
		return d < 0
	}
	return a.Second < b.Second-eps*(1+b.Second)
}

// Score returns the score of the last run.
func (m *Clock) Score(span bool) Score {
	makespan, longest, ends := 0.0, 0.0, 0.0
	for r, order := range m.s.Orders {
		if n := len(order); n > 0 {
			makespan = max(makespan, m.End[r][n-1])
			longest = max(longest, m.End[r][n-1]-m.Start[r][0])
			ends += m.End[r][n-1]
		}
	}
	if span {
		makespan, longest = longest, makespan
	}
	return Score{makespan, longest + ends/float64(m.s.Ranks)}
}
