package planner

import (
	"cmp"
	"math"
	"slices"
)

// An exact knapsack, whose weights are known only together.
//
// What a set of items takes is the height of the program that trains it, which is more than the sum of its parts: it has the
// activations of the deepest backward pass and of the fullest layer in it. So sets are weighed whole, by lowering them, and a sum of
// parts is only what bounds the search: each item takes at least its held bytes more at every moment of the step than the set
// without it, and its end bytes while the gradient of a deeper item waits, or at the end of the backward pass.
//
//	sets:    none - {h.3} - {h.3, h.7} - ...   depth first, deepest item first, each with and without the next item
//	left:    limit - bytes of the set          weighed
//	bound:   gain of the set + the best gain of later items in what is left, by a table of the sum's knapsack
//
// A set is left alone if its bound is no better than the best set found, or if it is too large already: larger sets are no smaller.
// Since the deepest item comes first, later items reach no further back, and the bound is nearly what they take.
//
// Known weakness: with many items of almost equal gain and size, many sets have almost the same bound, and are weighed. After so many, the
// search ends with the best set so far, and with how much more another could gain at most.

// item is something that may be taken.
type item struct {
	gain      float64
	held, end int64 // bytes that it takes at least, see above
	layer     int   // the deepest that it has a part of
}

// weight is what a set takes at least: the most at any moment, and the most while the gradient of its deepest layer is there.
type weight struct{ live, deep int64 }

// knapsack finds the best set of items.
type knapsack struct {
	items []item // deepest first
	limit int64
	base  weight // what every set takes besides its items, at every moment and in the end (deep)
	weigh func(set []bool) (weight, error)
	fits  func(set []bool) (bool, error) // whether what it takes is within the limit: asked only of sets that would be the best

	held, end table
	set, best []bool
	most      float64 // gain of the best set
	patience  int     // sets that may still be weighed
	missed    float64 // the most that a set could gain which was left for want of patience; 0: none was
	found     bool
}

// fill returns the set of items with the greatest sum of gains among those that fit; nil: none with a gain does. Items without a gain are not taken. Of equally good sets it is the one found first.
func (k *knapsack) fill() ([]bool, error) {
	k.set, k.best = make([]bool, len(k.items)), make([]bool, len(k.items))
	k.held = newTable(k.items, func(it item) int64 { return it.held }, k.limit-k.base.live)
	k.end = newTable(k.items, func(it item) int64 { return it.end }, k.limit-k.base.deep)
	if err := k.greedy(); err != nil {
		return nil, err
	}
	if err := k.search(0, node{0, k.limit - k.base.live, k.limit - k.base.deep, 0, math.MaxInt}); err != nil || !k.found {
		return nil, err
	}
	return k.best, nil
}

// greedy takes items by gain per byte as long as they fit, so that the search has something to compare with.
func (k *knapsack) greedy() error {
	order := make([]int, len(k.items))
	for i := range order {
		order[i] = i
	}
	density := func(i int) float64 { return k.items[i].gain / float64(max(k.items[i].end, 1)) }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(density(b), density(a)) })
	gain := 0.0
	for _, i := range order {
		if k.items[i].gain <= 0 {
			continue
		}
		k.set[i] = true
		fits, err := k.fits(k.set)
		if err != nil {
			return err
		}
		if k.set[i] = fits; fits {
			gain += k.items[i].gain
		}
	}
	if gain > 0 {
		k.keep(gain)
	}
	clear(k.set)
	return nil
}

// keep makes the present set the best one.
func (k *knapsack) keep(gain float64) {
	k.most, k.found = gain, true
	copy(k.best, k.set)
}

// node is a set in the search.
type node struct {
	gain            float64
	live, end, deep int64 // bytes that it leaves: at every moment; in the end, by the sum; while the gradient of its deepest layer is there
	layer           int   // the deepest
}

// bound returns the most that items from number i on can add.
func (k *knapsack) bound(i int, n *node) float64 {
	if i == len(k.items) {
		return 0
	}
	end := n.end
	if k.items[i].layer > n.layer { // so are all that follow, and their gradients wait when that of the deepest layer is there
		end = min(end, n.deep)
	}
	return min(k.held.best(i, n.live), k.end.best(i, end))
}

// search decides about item i and those after it. What the bound would do comes first, so that the first sets are nearly the best.
func (k *knapsack) search(i int, n node) error {
	if i == len(k.items) || n.gain+k.bound(i, &n) <= k.most {
		return nil
	}
	first := k.bound(i+1, &n) >= k.bound(i, &n)
	if first {
		if err := k.search(i+1, n); err != nil {
			return err
		}
	}
	if err := k.take(i, n); err != nil || first {
		return err
	}
	return k.search(i+1, n)
}

// take adds item i to the set, if that can be part of a better one, and decides about those after it.
func (k *knapsack) take(i int, n node) error {
	it := &k.items[i]
	if it.gain <= 0 || it.held > n.live || it.end > n.end || n.gain+k.bound(i, &n) <= k.most {
		return nil
	}
	k.set[i] = true
	defer func() { k.set[i] = false }()
	if k.patience--; k.patience < 0 {
		k.missed = max(k.missed, n.gain+k.bound(i, &n))
		return nil
	}
	w, err := k.weigh(k.set)
	if err != nil {
		return err
	}
	if w.live > k.limit {
		return nil
	}
	if gain := n.gain + it.gain; gain > k.most {
		fits, err := k.fits(k.set)
		if err != nil {
			return err
		}
		if fits {
			k.keep(gain)
		}
	}
	return k.search(i+1, node{n.gain + it.gain, k.limit - w.live, n.end - it.end, k.limit - w.deep, min(n.layer, it.layer)})
}

// table holds, for the items from each on, the greatest gain in so many units of bytes. Weights are rounded down to units, so it is a
// bound, and exact where all are multiples of the unit.
type table struct {
	unit int64
	gain [][]float64
}

// tableUnits bounds the units of a table.
const tableUnits = 1 << 17

func newTable(items []item, of func(item) int64, room int64) table {
	var unit int64
	for _, it := range items {
		for a, b := of(it), unit; ; a, b = b, a%b {
			if b == 0 {
				unit = a
				break
			}
		}
	}
	t := table{unit: max(unit, room/tableUnits, 1), gain: make([][]float64, len(items)+1)}
	n := int(max(room, 0)/t.unit) + 1
	t.gain[len(items)] = make([]float64, n)
	for i := len(items) - 1; i >= 0; i-- {
		t.gain[i] = slices.Clone(t.gain[i+1])
		w := int(of(items[i]) / t.unit)
		for c := w; c < n && items[i].gain > 0; c++ {
			t.gain[i][c] = max(t.gain[i][c], t.gain[i+1][c-w]+items[i].gain)
		}
	}
	return t
}

// best returns the greatest gain of items from number i on in so many bytes.
func (t *table) best(i int, room int64) float64 {
	if room < 0 {
		return 0
	}
	return t.gain[i][min(int(room/t.unit), len(t.gain[i])-1)]
}
