package bench_test

import (
	"math"
	"testing"

	"github.com/athanor-llm/athanor/bench"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestRatioAA: of many comparisons of a thing with itself, on a machine whose load drifts and whose steps have outliers, 5 +- 3 %
// find a difference; of comparisons with what takes 5 % longer nearly all do, and their intervals have the true ratio.
func TestRatioAA(t *testing.T) {
	r := testkit.Rand(t)
	const rounds = 24
	trials := testkit.Count(200, 200, 3000) // of 200, one draw in thirty is outside the bounds
	compare := func(slower float64) *bench.Ratio {
		a, b := make([]float64, rounds), make([]float64, rounds)
		load := 1.0
		for i := range rounds {
			load *= math.Exp(0.1 * r.NormFloat64())
			step := func() float64 {
				s := load * math.Exp(0.03*r.NormFloat64())
				if r.IntN(20) == 0 {
					s *= 1.1
				}
				return s
			}
			a[i], b[i] = step(), slower*step()
		}
		return bench.NewRatio(a, b)
	}
	wrong, found, inside := 0, 0, 0
	for range trials {
		if compare(1).Decided() {
			wrong++
		}
		c := compare(1.05)
		if c.Decided() {
			found++
		}
		if c.Low <= 1.05 && 1.05 <= c.High {
			inside++
		}
	}
	t.Logf("differences found: %d of %d where there is none, %d where there is one; %d intervals are right", wrong, trials, found, inside)
	if share := float64(wrong) / float64(trials); share < 0.02 || share > 0.08 {
		t.Errorf("%.1f %% of comparisons of a thing with itself find a difference", 100*share)
	}
	if found < trials*8/10 || inside < trials*92/100 {
		t.Errorf("of %d comparisons with what takes 5 %% longer, %d find a difference and %d have the true ratio in their interval", trials, found, inside)
	}
}

// TestRatio: a ratio without noise is exact and decided, load that slows both alike changes nothing, and the rounds that it
// is said to take are about those after which a difference is found.
func TestRatio(t *testing.T) {
	a, b := []float64{1, 2, 4, 8}, []float64{1.5, 3, 6, 12}
	if r := bench.NewRatio(a, b); math.Abs(r.Ratio-1.5) > 1e-12 || !r.Decided() || r.More != 0 || r.Rounds != 4 {
		t.Errorf("%+v", r)
	}
	rng := testkit.Rand(t)
	draw := func(n int) *bench.Ratio {
		a, b := make([]float64, n), make([]float64, n)
		for i := range n {
			a[i], b[i] = math.Exp(0.05*rng.NormFloat64()), 1.02*math.Exp(0.05*rng.NormFloat64())
		}
		return bench.NewRatio(a, b)
	}
	for range 20 {
		few := draw(8)
		if few.Decided() || few.More < 8 {
			continue
		}
		if later := draw(8 + 4*few.More); few.Ratio > 1.005 && !later.Decided() && later.Ratio > few.Ratio {
			t.Errorf("after 8 rounds %+v, after four times as many more %+v", few, later)
		}
	}
}
