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
func recompute(b *builder, units []unit, kept *retention) {
	for i := range units {
		u := &units[i]
		if !u.hasRetention() {
			continue
		}
		seg := &b.st.g.Segments[u.segment]
		made := kept.remade(u.segment)
		prefix := make([]*op, 0, len(seg.Forward)+len(u.work))
		for n := range seg.Forward {
			row, end := made.first[n], u.row+u.rows
			if row = max(row, u.row); row < end {
				prefix = append(prefix, b.nodeOp(u, &seg.Forward[n], program.Recompute, row, end-row, 0))
			}
		}
		if u.half != schedule.W { // weight gradients find what the input half recomputed
			u.work = append(prefix, u.work...)
		}
		for _, o := range u.work {
			for k := range o.refs {
				r := &o.refs[k]
				if r.micro != u.micro {
					continue // received here for a later unit
				}
				if r.value >= 0 && made.copied[r.value] {
					r.copy = 1
				}
			}
		}
	}
}

// retention says what becomes of the values that layers save for their backward units. It follows from the plan; per
// segment it is computed when it is first asked for.
type retention struct {
	st        *step
	acts      [][]plan.Act // the class of each saved value
	remakings []*remaking
}

func newRetention(st *step) *retention {
	n := len(st.g.Segments)
	return &retention{st: st, acts: make([][]plan.Act, n), remakings: make([]*remaking, n)}
}

// fate returns the activation policy of a layer's value between its forward and
// backward unit. Values that are not saved have none: they are recomputed only as
// inputs of others.
func (kept *retention) fate(segment, value int) plan.Fate {
	seg := &kept.st.g.Segments[segment]
	k := slices.Index(seg.Saved, value)
	if k < 0 {
		return plan.Remade
	}
	if kept.acts[segment] == nil {
		for _, v := range seg.Saved {
			kept.acts[segment] = append(kept.acts[segment], plan.ActOfValue(seg, v))
		}
	}
	return kept.st.pl.Activations[segment-1][kept.acts[segment][k]]
}

// swapped says which values leave the device in any layer.
func (kept *retention) swapped() []bool {
	leaves := make([]bool, len(kept.st.g.Values))
	for layer := range kept.st.pl.Activations {
		segment := layer + 1
		for _, v := range kept.st.g.Segments[segment].Saved {
			f := kept.fate(segment, v)
			leaves[v] = leaves[v] || f.Swapped() && kept.st.waitingRows(f) > 0
		}
	}
	return leaves
}

// remaking says what the backward units of a layer, which are all alike, recompute.
type remaking struct {
	first  []int  // by forward operator: the first row to recompute; past all rows if none
	copied []bool // by value: it has a recomputed instance
}

// remade returns the remaking of a segment.
func (kept *retention) remade(segment int) *remaking {
	if kept.remakings[segment] == nil {
		seg, again := &kept.st.g.Segments[segment], kept.missing(segment)
		r := &remaking{copied: make([]bool, len(kept.st.g.Values))}
		for n := range seg.Forward {
			r.first = append(r.first, firstRow(&seg.Forward[n], again))
		}
		for v := range again {
			r.copied[v] = true
		}
		for _, v := range seg.Saved {
			if kept.fate(segment, v).Swapped() {
				r.copied[v] = true
			}
		}
		kept.remakings[segment] = r
	}
	return kept.remakings[segment]
}

// missing maps the forward values to recompute to their first recomputed row: the saved
// values that are absent and, transitively, their absent inputs.
func (kept *retention) missing(segment int) map[int]int {
	seg := &kept.st.g.Segments[segment]
	again := map[int]int{}
	var need func(v, row int)
	need = func(v, row int) {
		if kept.st.g.Values[v].Kind != graph.Forwarded || !seg.Makes(v) { // its input, or another segment's
			return
		}
		if slices.Contains(seg.Saved, v) {
			row = kept.st.waitingRows(kept.fate(segment, v))
		}
		if have, ok := again[v]; row == kept.st.rows() || ok && have <= row {
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
