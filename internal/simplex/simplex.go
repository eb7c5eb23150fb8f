// Package simplex solves linear programs: minimise cost.x subject to row.x >= least for every row and x >= 0, with no negative cost.
//
// Approach: the dual simplex method on a dense dictionary (Lemke 1954; Chvatal, Linear Programming, chapter 10).
// Without negative costs the slacks are a dual feasible basis, so there is no first phase: while a row is violated,
// the variable that repairs it at the least cost per unit enters. The solution comes with a proof: nonnegative
// multipliers, one per row, that combine the rows into a lower bound on the cost (Bound).
//
// Example: minimise x where x >= 3 - y and y <= 1: x = 2, multipliers 1 and 1. Known weakness: dense, so some hundred
// rows and columns. Equal costs could cause cycling, so tiny extra costs break ties.
package simplex

import (
	"math"
	"slices"
)

// Program is a linear program under construction.
type Program struct {
	Cost  []float64 // of each variable
	tie   []float64 // tiny extra costs that break ties
	top   []float64 // upper limits that an optimum respects, for Bound only
	rows  [][]Term
	least []float64
}

// Term is a coefficient of a variable in a row.
type Term struct {
	Variable int
	Factor   float64
}

// Variable adds a variable and returns its index. It makes all ties distinct.
func (p *Program) Variable(cost, tie, top float64) int {
	_, part := math.Modf(float64(len(p.Cost)) * math.Phi)
	p.Cost = append(p.Cost, cost)
	p.tie = append(p.tie, tie*(1+part))
	p.top = append(p.top, top)
	return len(p.Cost) - 1
}

// Add adds the row terms >= least.
func (p *Program) Add(least float64, terms ...Term) {
	p.rows = append(p.rows, terms)
	p.least = append(p.least, least)
}

const pivotTolerance = 1e-9

// dictionary expresses basic variables by nonbasic ones: basic = at + a.nonbasic. basic and other identify the
// variable of each row and column: an index below the number of columns is a variable of the program, from there on
// the slack of a row.
type dictionary struct {
	a            [][]float64
	at, cost     []float64
	basic, other []int
}

// Solve returns the best x and the multipliers of the rows, or false if no x satisfies the rows.
func (p *Program) Solve() (x, multipliers []float64, ok bool) {
	d := p.dictionary()
	for {
		r := d.violated()
		if r < 0 {
			break
		}
		c := d.entering(r)
		if c < 0 {
			return nil, nil, false
		}
		d.pivot(r, c)
	}
	n := len(p.Cost)
	x, multipliers = make([]float64, n), make([]float64, len(p.rows))
	for i, v := range d.basic {
		if v < n {
			x[v] = max(0, d.at[i])
		}
	}
	for j, v := range d.other {
		if v >= n {
			multipliers[v-n] = d.cost[j]
		}
	}
	return x, multipliers, true
}

func (p *Program) dictionary() *dictionary {
	n := len(p.Cost)
	d := &dictionary{cost: make([]float64, n), other: make([]int, n)}
	for j := range d.other {
		d.cost[j], d.other[j] = p.Cost[j]+p.tie[j], j
	}
	for i, row := range p.rows {
		a := make([]float64, n)
		for _, t := range row {
			a[t.Variable] += t.Factor
		}
		d.a = append(d.a, a)
		d.at = append(d.at, -p.least[i])
		d.basic = append(d.basic, n+i)
	}
	return d
}

// violated returns the most violated row, or -1.
func (d *dictionary) violated() int {
	row, worst := -1, -pivotTolerance
	for i, v := range d.at {
		if v < worst {
			row, worst = i, v
		}
	}
	return row
}

// entering returns the column that repairs a row at the least cost, or -1 if none can.
func (d *dictionary) entering(row int) int {
	column, least := -1, 0.0
	for j, a := range d.a[row] {
		if a <= pivotTolerance {
			continue
		}
		if ratio := d.cost[j] / a; column < 0 || ratio < least {
			column, least = j, ratio
		}
	}
	return column
}

// pivot exchanges the basic variable of a row with the nonbasic one of a column.
func (d *dictionary) pivot(r, c int) {
	row := d.a[r]
	inverse := 1 / row[c]
	for j := range row {
		row[j] *= -inverse
	}
	row[c] = inverse
	d.at[r] *= -inverse
	eliminate := func(a []float64, at *float64) {
		f := a[c]
		if f == 0 {
			return
		}
		a[c] = 0
		for j, v := range row {
			a[j] += f * v
		}
		if at != nil {
			*at += f * d.at[r]
		}
	}
	for i := range d.a {
		if i != r {
			eliminate(d.a[i], &d.at[i])
		}
	}
	eliminate(d.cost, nil)
	d.basic[r], d.other[c] = d.other[c], d.basic[r]
}

// Bound returns the lower bound on the cost, without ties, that the multipliers prove for all x between 0 and top.
// The combined rows give sum(multiplier*least) <= combination.x; where the combination charges a variable more than
// its cost, the excess counts at most top times.
func (p *Program) Bound(multipliers []float64) (sum float64) {
	left := slices.Clone(p.Cost)
	for i, row := range p.rows {
		m := max(0, multipliers[i])
		sum += m * p.least[i]
		for _, t := range row {
			left[t.Variable] -= m * t.Factor
		}
	}
	for j, c := range left {
		sum += min(0, c) * p.top[j]
	}
	return sum
}
