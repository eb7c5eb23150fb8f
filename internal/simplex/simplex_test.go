package simplex

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// corners returns the least cost over all corners of a program in two variables: intersections of two rows or
// axes.
func corners(p *Program) float64 {
	rows, least := [][2]float64{{1, 0}, {0, 1}}, []float64{0, 0}
	for i, r := range p.rows {
		var a [2]float64
		for _, t := range r {
			a[t.Variable] += t.Factor
		}
		rows, least = append(rows, a), append(least, p.least[i])
	}
	best := math.Inf(1)
	for i := range rows {
		for j := range i {
			det := rows[i][0]*rows[j][1] - rows[i][1]*rows[j][0]
			if math.Abs(det) < 1e-12 {
				continue
			}
			x := (least[i]*rows[j][1] - least[j]*rows[i][1]) / det
			y := (rows[i][0]*least[j] - rows[j][0]*least[i]) / det
			feasible := true
			for k := range rows {
				feasible = feasible && rows[k][0]*x+rows[k][1]*y >= least[k]-1e-9
			}
			if feasible {
				best = min(best, p.Cost[0]*x+p.Cost[1]*y)
			}
		}
	}
	return best
}

func TestSimplexCorners(t *testing.T) {
	testkit.Check(t, func(r *rapid.T) {
		var p Program
		whole := func(low, high int, name string) float64 { return float64(rapid.IntRange(low, high).Draw(r, name)) }
		p.Variable(whole(0, 5, "cost"), 1e-9, 100)
		p.Variable(whole(0, 5, "cost"), 1e-9, 100)
		for range rapid.IntRange(0, 6).Draw(r, "rows") {
			p.Add(whole(-6, 6, "least"), Term{0, whole(-4, 4, "a")}, Term{1, whole(-4, 4, "b")})
		}
		want := corners(&p)
		x, _, ok := p.Solve()
		if ok != !math.IsInf(want, 1) {
			r.Fatalf("solved %v, corners say %g", ok, want)
		}
		if !ok {
			return
		}
		if got := p.Cost[0]*x[0] + p.Cost[1]*x[1]; math.Abs(got-want) > 1e-6 {
			r.Errorf("cost %g, want %g", got, want)
		}
	})
}

// TestSimplexProof: in larger programs, x satisfies the rows, and the multipliers prove that nothing costs
// less.
func TestSimplexProof(t *testing.T) {
	solved := 0
	testkit.Check(t, func(r *rapid.T) {
		var p Program
		n := rapid.IntRange(1, 12).Draw(r, "variables")
		number := func(name string) float64 { return float64(rapid.IntRange(-8, 8).Draw(r, name)) }
		for range n {
			p.Variable(math.Abs(number("cost")), 1e-9, 1e4)
		}
		for range rapid.IntRange(1, 20).Draw(r, "rows") {
			var row []Term
			for j := range n {
				row = append(row, Term{j, number("factor")})
			}
			p.Add(number("least"), row...)
		}
		x, y, ok := p.Solve()
		if !ok {
			return
		}
		solved++
		cost := 0.0
		for j, v := range x {
			cost += v * p.Cost[j]
		}
		for i, row := range p.rows {
			sum := 0.0
			for _, t := range row {
				sum += t.Factor * x[t.Variable]
			}
			if sum < p.least[i]-1e-6 {
				r.Errorf("row %d: %g, at least %g", i, sum, p.least[i])
			}
		}
		if bound := p.Bound(y); bound > cost+1e-6 || bound < cost-1e-3 {
			r.Errorf("cost %g, proven %g", cost, bound)
		}
	})
	if solved == 0 {
		t.Error("no program was solvable")
	}
}
