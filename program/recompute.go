package program

import (
	"math"
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/schedule"
)

// recompute puts before the backward operators of a layer those forward ones
// that make again what is not there, and nothing else: it walks back from the
// values that are read to the operators that write them. Operators that treat
// every row by itself make just the rows that are missing, behind those that
// come back from another tier, so that the backward pass finds one matrix:
//
//	up'1  rows 0:448    copied from the host (pass swap)
//	      rows 448:1024 linear of norm2'1, the same rows
//
// Such values are instances of their own (copy 1); those that were kept are read
// where the forward pass left them.
func (lo *lowering) recompute() error {
	for i := range lo.units {
		u := &lo.units[i]
		if !lo.hasRetention(u) {
			continue
		}
		seg := &lo.g.Segments[u.segment]
		again := lo.missing(u)
		var prefix []op
		for n := range seg.Forward {
			row, end := firstRow(&seg.Forward[n], again), u.row+u.rows
			if row = max(row, u.row); row < end {
				prefix = append(prefix, lo.op(u, &seg.Forward[n], Recompute, row, end-row, 0))
			}
		}
		if u.half != schedule.W { // which finds them made
			u.work = append(prefix, u.work...)
		}
		for j := range u.work {
			for k := range u.work[j].refs {
				r := &u.work[j].refs[k]
				if r.micro != u.micro {
					continue // it is received here for a unit to come
				}
				if _, ok := again[r.value]; ok || r.value >= 0 && lo.fate(u, r.value).Swapped() {
					r.copy = 1
				}
			}
		}
	}
	return nil
}

// hasRetention: it is the backward unit of a layer.
func (lo *lowering) hasRetention(u *unit) bool {
	return u.backward && !u.forward && u.segment > 0
}

// fate is what becomes of a value between a layer's forward unit and u, its
// backward one. Values that are not saved have none: they are made again where
// that is needed to make others.
func (lo *lowering) fate(u *unit, value int) Fate {
	seg := &lo.g.Segments[u.segment]
	if !slices.Contains(seg.Saved, value) {
		return Remade
	}
	return lo.pl.Activations[u.segment-1][actOfValue(seg, value)]
}

// missing maps the forward values that must be made again to the first row:
// those that are saved and not there, and whatever they are made from that is
// not there either.
func (lo *lowering) missing(u *unit) map[int]int {
	seg := &lo.g.Segments[u.segment]
	again := map[int]int{}
	var need func(v, row int)
	need = func(v, row int) {
		if lo.g.Values[v].Kind != graph.Forwarded || v == seg.In {
			return
		}
		if slices.Contains(seg.Saved, v) {
			row = lo.waiting(lo.fate(u, v))
		}
		if have, ok := again[v]; row == lo.rows() || ok && have <= row {
			return
		}
		again[v] = row
		for n := range seg.Forward {
			node := &seg.Forward[n]
			if !writes(node, v) {
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

// firstRow is the first row that a node has to make again; past all rows if
// there is none.
func firstRow(n *graph.Node, again map[int]int) int {
	first := math.MaxInt
	for v, row := range again {
		if writes(n, v) {
			first = min(first, row)
		}
	}
	return first
}

// writes reports whether a node makes (part of) a value.
func writes(n *graph.Node, v int) bool {
	for i, spec := range n.Op.Info().Args {
		if i < len(n.Args) && n.Args[i].Value == v && spec.Access != graph.Read {
			return true
		}
	}
	return false
}
