package watch

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestDecimate: in every column of pixels, the points that are kept have the least and the greatest value of all its
// points, its first and last, and one that is not finite if it has any; at most five are kept; and next to the range the
// nearest points are kept. The oracle looks at all points of each column anew.
func TestDecimate(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 300).Draw(t, "rows")
		x, y := make([]float64, n), make([]float64, n)
		at := 0.0
		for i := range n {
			at += float64(rapid.IntRange(1, 4).Draw(t, "gap"))
			x[i] = at
			y[i] = rapid.SampledFrom([]float64{1, 2, 3, -7, 1e300, math.NaN(), math.Inf(1)}).Draw(t, "y")
		}
		from, to := float64(rapid.IntRange(0, 700).Draw(t, "from")), float64(rapid.IntRange(0, 700).Draw(t, "to"))
		columns := rapid.IntRange(1, 40).Draw(t, "columns")
		kept := decimate(x, y, from, to, columns)
		if !slices.IsSorted(kept) || len(slices.Compact(slices.Clone(kept))) != len(kept) {
			t.Fatalf("%v are not ascending", kept)
		}
		byColumn, keptBy := map[int][]int{}, map[int][]int{}
		column := func(i int) int {
			switch {
			case x[i] < from:
				return -1
			case x[i] > to:
				return columns
			case to == from:
				return 0
			}
			return min(int((x[i]-from)/((to-from)/float64(columns))), columns-1)
		}
		for i := range n {
			if !math.IsNaN(y[i]) {
				byColumn[column(i)] = append(byColumn[column(i)], i)
			}
		}
		for _, i := range kept {
			keptBy[column(i)] = append(keptBy[column(i)], i)
		}
		for c, all := range byColumn {
			some := keptBy[c]
			switch {
			case c < 0:
				if from <= to && !slices.Equal(some, all[len(all)-1:]) {
					t.Fatalf("before the range %v is kept of %v", some, all)
				}
			case c == columns:
				if from <= to && !slices.Equal(some, all[:1]) {
					t.Fatalf("after the range %v is kept of %v", some, all)
				}
			case len(some) > 5 || some[0] != all[0] || some[len(some)-1] != all[len(all)-1] || extremes(y, some) != extremes(y, all):
				t.Fatalf("column %d: %v is kept of %v", c, some, all)
			}
		}
	})
}

// extremes returns the least and the greatest finite value, and whether one is not finite.
func extremes(y []float64, list []int) (e struct {
	least, greatest float64
	broken          bool
}) {
	e.least, e.greatest = math.MaxFloat64, -math.MaxFloat64
	for _, i := range list {
		if math.IsInf(y[i], 0) {
			e.broken = true
			continue
		}
		e.least, e.greatest = min(e.least, y[i]), max(e.greatest, y[i])
	}
	return e
}

// TestSmooth: the mean of a constant is the constant from the first point on, absent and infinite values leave no trace,
// and a step's influence has halved after the given number of points.
func TestSmooth(t *testing.T) {
	for i, v := range smooth([]float64{3, math.NaN(), 3, math.Inf(1), 3}, 5) {
		if i%2 == 0 && math.Abs(v-3) > 1e-12 || i == 1 && !math.IsNaN(v) || i == 3 && !math.IsInf(v, 1) {
			t.Errorf("point %d of a constant is %v", i, v)
		}
	}
	y := make([]float64, 2000)
	for i := 1000; i < len(y); i++ {
		y[i] = 1
	}
	if v := smooth(y, 100)[1099]; math.Abs(v-0.5) > 1e-3 { // of 100 ones, after a thousand zeros
		t.Errorf("after 100 points the mean is %v", v)
	}
}
