package stat

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestMedian: as many values are below it as above, it does not depend on the order,
// and the list stays as it is.
func TestMedian(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for n := 1; n < 30; n++ {
		list := make([]float64, n)
		for i := range list {
			list[i] = r.NormFloat64()
		}
		before := slices.Clone(list)
		m := Median(list)
		if !slices.Equal(list, before) {
			t.Errorf("%v became %v", before, list)
		}
		less, more := 0, 0
		for _, v := range list {
			if v < m {
				less++
			}
			if v > m {
				more++
			}
		}
		r.Shuffle(n, func(i, k int) { list[i], list[k] = list[k], list[i] })
		if less != n/2 || more != n/2 || Median(list) != m {
			t.Errorf("%v: %v has %d below and %d above, in another order %v", before, m, less, more, Median(list))
		}
	}
	if Median([]float64{4, 1}) != 2.5 || Median([]float64{7}) != 7 {
		t.Error("of 1 and 4 it is 2.5, of 7 it is 7")
	}
}
