package lower

import (
	"math"
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
)

// recompute inserts before the backward operators of a layer the forward operators that
// compute the absent activations, and no others. It walks back from the values that are
// read to the operators that write them. Row-wise operators recompute only the absent
// rows, behind those swapped in from another tier, so that the backward pass reads one
// matrix:
//
//	up'1  rows 0:448    copied from the host (pass swap)
//	      rows 448:1024 linear of norm2'1, the same rows
//
// Recomputed values are separate instances (copy 1). Kept values are read where the
// forward pass left them.
func (lo *lowering) recompute() error {
	for i := range lo.units {
		u := &lo.units[i]
		if !lo.hasRetention(u) {
			continue
		}
		seg := &lo.g.Segments[u.segment]
		made := lo.remade(u.segment)
		var prefix []op
		for n := range seg.Forward {
			row, end := made.first[n], u.row+u.rows
			if row = max(row, u.row); row < end {
				prefix = append(prefix, lo.op(u, &seg.Forward[n], program.Recompute, row, end-row, 0))
			}
		}
		if u.half != schedule.W { // weight gradients find what the input half recomputed
			u.work = append(prefix, u.work...)
		}
		for j := range u.work {
			for k := range u.work[j].refs {
				r := &u.work[j].refs[k]
				if r.micro != u.micro {
					continue // received here for a later unit
				}
				if r.value >= 0 && slices.Contains(made.copies, r.value) {
					r.copy = 1
				}
			}
		}
	}
	return nil
}

// hasRetention reports whether u is the backward unit of a layer.
func (lo *lowering) hasRetention(u *unit) bool {
	return u.backward && !u.forward && u.segment > 0
}

// fate returns the activation policy of a layer's value between its forward and
// backward unit. Values that are not saved have none: they are recomputed only as
// inputs of others.
func (lo *lowering) fate(segment, value int) plan.Fate {
	saved := lo.g.Segments[segment].Saved
	k := slices.Index(saved, value)
	if k < 0 {
		return plan.Remade
	}
	if lo.acts == nil {
		lo.acts = make([][]plan.Act, len(lo.g.Segments))
	}
	if lo.acts[segment] == nil {
		for _, v := range saved {
			lo.acts[segment] = append(lo.acts[segment], plan.ActOfValue(&lo.g.Segments[segment], v))
		}
	}
	return lo.pl.Activations[segment-1][lo.acts[segment][k]]
}

// remaking says what the backward units of a layer, which are all alike, recompute.
type remaking struct {
	first  []int // by forward operator: the first row to recompute; past all rows if none
	copies []int // values that have a recomputed instance
}

// remade returns the remaking of a segment.
func (lo *lowering) remade(segment int) *remaking {
	if lo.remakings == nil {
		lo.remakings = make([]*remaking, len(lo.g.Segments))
	}
	if lo.remakings[segment] == nil {
		seg, again := &lo.g.Segments[segment], lo.missing(segment)
		r := &remaking{}
		for n := range seg.Forward {
			r.first = append(r.first, firstRow(&seg.Forward[n], again))
		}
		for v := range again {
			r.copies = append(r.copies, v)
		}
		for _, v := range seg.Saved {
			if lo.fate(segment, v).Swapped() {
				r.copies = append(r.copies, v)
			}
		}
		lo.remakings[segment] = r
	}
	return lo.remakings[segment]
}

// missing maps the forward values to recompute to their first recomputed row: the saved
// values that are absent and, transitively, their absent inputs.
func (lo *lowering) missing(segment int) map[int]int {
	seg := &lo.g.Segments[segment]
	again := map[int]int{}
	var need func(v, row int)
	need = func(v, row int) {
		if lo.g.Values[v].Kind != graph.Forwarded || v == seg.In {
			return
		}
		if slices.Contains(seg.Saved, v) {
			row = lo.waiting(lo.fate(segment, v))
		}
		if have, ok := again[v]; row == lo.rows() || ok && have <= row {
			return
		}
		again[v] = row
		for n := range seg.Forward {
			node := &seg.Forward[n]
			if !node.Writes(v) {
				continue
			}
			if node.Op.Info().Kind != graph.RowWise {
				row = 0
			}
			for _, use := range node.Args {
				if use.Value >= 0 {
					need(use.Value, row)
				}
			}
		}
	}
	for _, v := range seg.Saved {
		need(v, 0)
	}
	return again
}

// firstRow returns the first row that a node recomputes; past all rows if none.
func firstRow(n *graph.Node, again map[int]int) int {
	first := math.MaxInt
	for v, row := range again {
		if n.Writes(v) {
			first = min(first, row)
		}
	}
	return first
}
