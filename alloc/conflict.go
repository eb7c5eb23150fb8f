package alloc

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// Conflicts
//
// There are two proofs that buffers do not fit: too many bytes are alive at one
// moment, or the search has excluded every packing. Either way the answer is
// more useful if it names the few buffers to blame.
//
// Example: capacity 11 and three buffers of 4 bytes alive together among a
// hundred others: the conflict is these three.
//
// Weakness: a minimal conflict, from which no buffer can be dropped, need not be
// the smallest one.

// overload returns the error for more bytes alive at once than the capacity
// holds. Of up to 256 overfull moments it picks the one whose conflict, the
// fewest of the largest buffers that exceed the capacity, is smallest.
func overload(p Problem, items []parts.Item, sections int32) error {
	load := parts.Loads(items, sections)
	var best []parts.Item
	looked := 0
	for k, bytes := range load {
		if bytes <= p.Capacity || looked == 256 {
			continue
		}
		looked++
		var live []parts.Item
		for _, it := range items {
			if it.Lo <= int32(k) && int32(k) < it.Hi {
				it.Lo, it.Hi = 0, 1
				live = append(live, it)
			}
		}
		slices.SortStableFunc(live, func(a, b parts.Item) int {
			return cmp.Compare(b.Size+max(b.Fixed, 0), a.Size+max(a.Fixed, 0))
		})
		for n := 1; n <= len(live); n++ {
			if parts.Loads(live[:n], 1)[0] > p.Capacity {
				if best == nil || n < len(best) {
					best = live[:n]
				}
				break
			}
		}
	}
	indices := make([]int, len(best))
	for i, it := range best {
		indices[i] = int(it.Index)
	}
	return infeasible(p, indices, true)
}

// conflict returns the error for an impossible leaf. It shrinks the leaf's
// buffers, and those peeled from under it, to a minimal conflict: it leaves out
// half of them, a quarter, ... one, as long as the rest is proven impossible.
func (r *run) conflict(l *leafState) error {
	set := r.aliveWith(l)
	if r.opt.bare {
		return infeasible(r.problem, set, false)
	}
	minimal := true
	inner := Options{Nodes: 4*r.nodes + firstBudget, Workers: r.opt.Workers, Flat: true, bare: true}
	for size := (len(set) + 1) / 2; size > 0; size /= 2 {
		for from := 0; from < len(set); {
			rest := slices.Delete(slices.Clone(set), from, min(from+size, len(set)))
			_, err := Pack(r.ctx, r.subset(rest), inner)
			if errors.Is(err, ErrInfeasible) {
				set = rest
				continue
			}
			if err != nil && size == 1 {
				minimal = false
			}
			from += size
		}
	}
	return infeasible(r.problem, set, minimal)
}

// aliveWith returns the leaf's buffers and the peeled ones alive with them.
func (r *run) aliveWith(l *leafState) []int {
	var set []int
	member := make(map[int]bool)
	lower, upper := int64(math.MaxInt64), int64(math.MinInt64)
	for _, it := range l.Items {
		b := &r.problem.Buffers[it.Index]
		lower, upper = min(lower, b.Lower), max(upper, b.Upper)
		member[int(it.Index)] = true
	}
	inLeaf := make(map[int]bool)
	for _, o := range r.leaves {
		for _, it := range o.Items {
			inLeaf[int(it.Index)] = true
		}
	}
	for i, b := range r.problem.Buffers {
		if member[i] || !inLeaf[i] && b.Lower < upper && lower < b.Upper {
			set = append(set, i)
		}
	}
	return set
}

func (r *run) subset(indices []int) Problem {
	p := Problem{Capacity: r.problem.Capacity}
	for _, i := range indices {
		p.Buffers = append(p.Buffers, r.problem.Buffers[i])
	}
	return p
}

func infeasible(p Problem, indices []int, minimal bool) error {
	slices.Sort(indices)
	e := &InfeasibleError{Capacity: p.Capacity, Conflict: indices, Minimal: minimal}
	for _, i := range indices {
		e.ids = append(e.ids, p.Buffers[i].ID)
	}
	return e
}
