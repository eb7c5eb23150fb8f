package schedule

import (
	"math"
	"strings"
)

// Grid draws the timeline in characters, one line per rank: a digit (the micro-batch) for
// a forward, a letter for a backward or input gradient, w for a weight gradient, '.' while
// the rank waits. A column is the longest fraction 1/n of the shortest unit, n <= 12, that
// divides all starts and ends. If none does, or lines would get too long, times are
// rounded to columns.
//
//	r0: 0123......aa4bb5cc6dd7ee.ff.gg.hh        (1F1B, p=4, m=8, backward twice as long as forward)
//
// Weakness: micro-batches are shown modulo 10 (forward) and 26 (backward), and chunks not
// at all. Drawings (lab/pipeline) show both.
func (s *Schedule) Grid(t *Timeline) []string {
	column := t.column()
	at := func(time float64) int { return int(math.Round(time / column)) }
	lines := make([]string, s.Ranks)
	for r, order := range s.Orders {
		line := []byte(strings.Repeat(".", at(t.Makespan)))
		for j, u := range order {
			from, to := at(t.Start[r][j]), at(t.End[r][j])
			switch { // of an overlapped pair, the forward gets the first third
			case u.Joined:
				from += (to - from + 2) / 3
			case j+1 < len(order) && order[j+1].Joined:
				to = from + (to-from+2)/3
			}
			for i := from; i < to; i++ {
				line[i] = symbol(u)
			}
		}
		lines[r] = string(line)
	}
	return lines
}

func symbol(u Unit) byte {
	switch u.Pass {
	case F:
		return byte('0' + u.Micro%10)
	case W:
		return 'w'
	}
	return byte('a' + u.Micro%26)
}

// column returns the time that a character stands for.
func (t *Timeline) column() float64 {
	const widest = 4000
	shortest := math.Inf(1)
	for r := range t.Start {
		for j := range t.Start[r] {
			if d := t.End[r][j] - t.Start[r][j]; d > 0 {
				shortest = min(shortest, d)
			}
		}
	}
	for n := 1; n <= 12; n++ {
		if c := shortest / float64(n); t.Makespan/c <= widest && t.divides(c) {
			return c
		}
	}
	return max(shortest/2, t.Makespan/widest)
}

// divides reports whether all starts and ends are multiples of a column.
func (t *Timeline) divides(column float64) bool {
	whole := func(x float64) bool {
		n := x / column
		return math.Abs(n-math.Round(n)) < 1e-6
	}
	for r := range t.Start {
		for j := range t.Start[r] {
			if !whole(t.Start[r][j]) || !whole(t.End[r][j]) {
				return false
			}
		}
	}
	return true
}
