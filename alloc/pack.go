package alloc

import (
	"context"
	"slices"
)

// Options says how much thought a packing is worth. The zero value runs the
// heuristics only, which takes milliseconds for a training program.
type Options struct {
	// Nodes allows the exact search this many nodes; 0 is none, negative is
	// until the context ends.
	Nodes int64
}

// fitEffort is the work one fit pass may do: about 30 ms.
const fitEffort = 30_000_000

// Pack solves p. With a capacity it stops at the first packing that fits;
// with none it minimises the height.
//
// The solution is valid also when the context ends early; then Optimal says
// whether the height was proven. Errors: a malformed problem; ErrInfeasible
// with proof; ErrUndecided when the effort ran out first.
func Pack(ctx context.Context, p Problem, opt Options) (Solution, error) {
	if err := p.check(); err != nil {
		return Solution{}, err
	}
	items, sections := compress(p.Buffers)
	bound := slices.Max(append(loads(items, sections), 0))
	if p.Capacity > 0 && bound > p.Capacity {
		return Solution{LowerBound: bound}, overload(p, items, sections)
	}
	best := greedy(items, sections, max(bound, p.Capacity), fitEffort)
	s := Solution{Offsets: make([]int64, len(items)), Height: best.height, LowerBound: bound}
	if len(items) == 0 {
		s.Height = 0
	}
	copy(s.Offsets, best.offsets)
	s.Optimal = s.Height == bound
	if p.Capacity > 0 && s.Height > p.Capacity {
		return s, ErrUndecided
	}
	return s, nil
}

// overload proves that more bytes are alive at once than the capacity holds:
// the conflict is the buffers alive at the busiest moment, less those that
// can be dropped while the rest still is too much.
func overload(p Problem, items []item, sections int32) error {
	load := loads(items, sections)
	worst := int32(slices.Index(load, slices.Max(load)))
	var live []item
	for _, it := range items {
		if it.lo <= worst && worst < it.hi {
			live = append(live, it)
		}
	}
	slices.SortFunc(live, func(a, b item) int { return bySize(&a, &b) })
	for i := len(live) - 1; i >= 0; i-- {
		rest := slices.Delete(slices.Clone(live), i, i+1)
		for k := range rest {
			rest[k].lo, rest[k].hi = 0, 1
		}
		if slices.Max(append(loads(rest, 1), 0)) > p.Capacity {
			live = rest
		}
	}
	return conflict(p, live, true)
}

func conflict(p Problem, items []item, minimal bool) error {
	e := &InfeasibleError{Capacity: p.Capacity, Minimal: minimal}
	for _, it := range items {
		e.Conflict = append(e.Conflict, int(it.index))
	}
	slices.Sort(e.Conflict)
	for _, i := range e.Conflict {
		e.ids = append(e.ids, p.Buffers[i].ID)
	}
	return e
}
