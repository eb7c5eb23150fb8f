package planner

import (
	"cmp"
	"slices"
)

// An exact knapsack, whose weights are known only together.
//
// What a set of items takes is the height of the program that trains it, which is more than the sum of its parts: it has the
// activations of the deepest backward pass and of the fullest layer in it. So sets are weighed whole, by lowering them, and a sum of
// parts is only what bounds the search: each item takes at least its held bytes more at every moment of the step than the set
// without it, and at the end of the backward pass its end bytes.
//
//	sets:    none - {h.3} - {h.3, h.7} - ...   depth first, deepest item first, each with and without the next item
//	left:    limit - bytes of the set          weighed
//	bound:   gain of the set + the best gain of later items in what is left, by a table of the sum's knapsack
//
// A set is left alone if its bound is no better than the best set found, or if it is too large already: larger sets are no smaller.
// Since the deepest item comes first, later items reach no further back, and the bound is nearly what they take.
//
// Known weakness: with many items of almost equal gain and size, many sets have almost the same bound, and are weighed.

// item is something that may be taken.
type item struct {
	gain      float64
	held, end int64 // bytes that it takes at least, see above
}

// weight is what a set takes: at one moment at least, and in all.
type weight struct{ live, height int64 }

// knapsack finds the best set of items.
type knapsack struct {
	items []item // deepest first
	limit int64
	base  weight // what no item saves: at every moment, and at the end of the backward pass (in height)
	weigh func(set []bool) (weight, error)

	held, end table
	set, best []bool
	most      float64 // gain of the best set
	found     bool
}

// fill returns the set of items with the greatest sum of gains among those that are no heavier than the limit, as weigh has it; nil:
// every set of one item is too heavy. Items without a gain are not taken. Of equally good sets it is the one found first.
func (k *knapsack) fill() ([]bool, error) {
	k.set, k.best = make([]bool, len(k.items)), make([]bool, len(k.items))
	k.held = newTable(k.items, func(it item) int64 { return it.held }, k.limit-k.base.live)
	k.end = newTable(k.items, func(it item) int64 { return it.end }, k.limit-k.base.height)
	if err := k.greedy(); err != nil {
		return nil, err
	}
	if err := k.search(0, 0, k.limit-k.base.live, k.limit-k.base.height); err != nil || !k.found {
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
		w, err := k.weigh(k.set)
		if err != nil {
			return err
		}
		if k.set[i] = w.height <= k.limit; k.set[i] {
			gain += k.items[i].gain
		}
	}
	k.keep(gain)
	clear(k.set)
	return nil
}

// keep makes the present set the best one if it is.
func (k *knapsack) keep(gain float64) {
	if gain > k.most {
		k.most, k.found = gain, true
		copy(k.best, k.set)
	}
}

// search decides about item i and those after it. live and end are the bytes that the set leaves at every moment, and at the end of
// the backward pass.
func (k *knapsack) search(i int, gain float64, live, end int64) error {
	if i == len(k.items) || gain+min(k.held.best(i, live), k.end.best(i, end)) <= k.most {
		return nil
	}
	it := &k.items[i]
	if it.gain > 0 && it.held <= live && it.end <= end {
		k.set[i] = true
		w, err := k.weigh(k.set)
		if err != nil {
			return err
		}
		if w.height <= k.limit {
			k.keep(gain + it.gain)
		}
		if w.live <= k.limit {
			if err := k.search(i+1, gain+it.gain, k.limit-w.live, end-it.end); err != nil {
				return err
			}
		}
		k.set[i] = false
	}
	return k.search(i+1, gain, live, end)
}

// table holds, for the items from each on, the greatest gain in so many units of bytes. Weights are rounded down to units, so it is a
// bound, and exact where all are multiples of the unit.
type table struct {
	unit int64
	gain [][]float64
}

// tableUnits bounds the units of a table.
const tableUnits = 1 << 14

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
