package planner

import (
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestKnapsack: the set is the best of all sets that fit, by trying all of them, where weights have a part that only whole sets have:
// the reach of the deepest item, the most crowded layer, what packing adds.
func TestKnapsack(t *testing.T) {
	r := testkit.Rand(t)
	for range testkit.Count(40, 300, 5000) {
		n := 1 + r.IntN(9)
		items, layer := make([]item, n), make([]int, n)
		crowd := make([]int64, n)
		for i := range items {
			layer[i] = i / 2
			held := int64(1+r.IntN(6)) * 64
			items[i] = item{gain: float64(r.IntN(8)-1) / 4, held: held, end: held + int64(r.IntN(2))*held/2, layer: layer[i]}
			crowd[i] = int64(r.IntN(300))
		}
		reach, pad := int64(r.IntN(200)), int64(r.IntN(3))*17
		base, ground := int64(r.IntN(500)), int64(r.IntN(300))
		weigh := func(set []bool) (w weight, height int64) {
			var held, most int64
			first := -1
			for i, taken := range set {
				if !taken {
					continue
				}
				if first < 0 {
					first = i
				}
				held += items[i].held
				sum := int64(0)
				for j := range set {
					if set[j] && layer[j] == layer[i] {
						sum += crowd[j]
					}
				}
				most = max(most, sum)
			}
			deep := int64(-1) // while the gradient of the deepest layer is there, with those of all others
			live := base + held + most + reach*int64(n-layer[max(first, 0)])
			for i := range set { // and so on from each layer
				if i > 0 && layer[i] == layer[i-1] {
					continue
				}
				there, ends := false, ground
				for j := range set {
					if set[j] && layer[j] >= layer[i] {
						ends += items[j].end
					}
					if set[j] && layer[j] == layer[i] {
						there, ends = true, ends+crowd[j]
					}
				}
				if there && deep < 0 {
					deep = ends
				}
				if there {
					live = max(live, ends)
				}
			}
			deep = max(deep, ground)
			live = max(live, deep)
			return weight{live, deep}, live + pad*int64(len(set)%3)
		}
		limit := base + int64(r.IntN(4000))
		best := 0.0
		for bits := 1; bits < 1<<n; bits++ {
			set, gain := make([]bool, n), 0.0
			for i := range set {
				if set[i] = bits>>i&1 == 1; set[i] {
					gain += items[i].gain
				}
			}
			if _, height := weigh(set); height <= limit {
				best = max(best, gain)
			}
		}
		weighed := 0
		k := knapsack{patience: 1 << 20, items: items, limit: limit, base: weight{live: base, deep: ground},
			weigh: func(set []bool) (weight, error) { weighed++; w, _ := weigh(set); return w, nil },
			fits:  func(set []bool) (bool, error) { _, height := weigh(set); return height <= limit, nil }}
		set, err := k.fill()
		check(t, err)
		gain := 0.0
		for i, taken := range set {
			if taken {
				gain += items[i].gain
			}
		}
		if gain != best || set == nil && best > 0 {
			t.Fatalf("gain %v of %v, the best is %v; items %v, limit %d", gain, set, best, items, limit)
		}
		k.patience, k.most, k.found = r.IntN(4), 0, false // then what was missed is bounded
		if _, err := k.fill(); err != nil || max(k.most, k.missed) < best {
			t.Fatalf("with little patience the gain is %v, the bound %v, the best %v, %v", k.most, k.missed, best, err)
		}
		if weighed > 2<<n || slices.Contains(set, true) != (best > 0) {
			t.Fatalf("%d sets were weighed for %d items", weighed, n)
		}
	}
}
