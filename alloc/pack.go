package alloc

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// Options sets the effort that a packing is worth. The zero value runs the
// heuristics only, which takes milliseconds for a training program.
type Options struct {
	// Nodes is the number of nodes allowed to the exact search (a million take
	// about three seconds): 0 is none, negative is until the context ends. The largest
	// parts are not searched.
	Nodes int64
	// Improve, if not nil and Nodes is not 0, lowers large parts that the heuristics
	// left too high, and medium ones that a million nodes have not solved.
	Improve Improver
	// Workers is the number of searches that may run at once; 0 means 1. The
	// answer does not depend on it.
	Workers int
	// Without switches techniques off.
	Without Technique
	// Flat leaves out the two-level packing of repeated parts.
	Flat bool
	// Cache, if not nil, is looked up first; solutions found are added to it. It
	// does not tell one Improver from another.
	Cache *Cache

	bare bool // do not minimise the conflict of an infeasible problem
}

// A Technique can be switched off, for experiments and to test that the answer
// does not depend on it.
type Technique uint

const (
	Sections Technique = 1 << iota // of the search; see search.go
	Harmless
	Twins
	Split
	Memory
	Critical
	Learning
	Glue // before the search, join buffers whose edges match; glue.go
)

// An Improver packs a part without fixed items lower than from, if it can, and not
// lower than target, which is enough. Its effort depends on the part alone.
type Improver func(ctx context.Context, p parts.Part, from parts.Packing, target int64) parts.Packing

// Heuristic effort is counted in steps of a few nanoseconds.
const (
	fastEffort   = 4_000_000
	fastPerItem  = 500
	mostEffort   = 500_000_000
	exactHaste   = 20 // with search allowed, heuristics may take this many times as much,
	exactMost    = 100_000_000
	searchable   = 2500      // most items in a leaf that is searched: the search stores all pairs of neighbours
	large        = 1000      // a leaf of more items is improved before it is searched;
	middling     = 300       // one of more than this many, after a first search in vain,
	glance       = 1_000_000 // with this many nodes, about as long as an Improver takes
	firstBudget  = 20_000    // nodes for the first try of a height
	growthFactor = 2
)

// Pack solves p. With a capacity it stops at the first packing that fits;
// with none it minimises the height.
//
// When the context ends early Pack returns the best packing so far; Optimal says
// whether its height is proven minimal. Errors: a malformed problem;
// ErrInfeasible with proof; ErrUndecided when the effort ran out first.
func Pack(ctx context.Context, p Problem, opt Options) (Solution, error) {
	if err := p.Check(); err != nil {
		return Solution{}, err
	}
	if s, ok := opt.Cache.get(p, opt); ok {
		return s, nil
	}
	items, sections := compress(p.Buffers)
	bound := slices.Max(append(parts.Loads(items, sections), 0))
	if p.Capacity > 0 && bound > p.Capacity {
		return Solution{LowerBound: bound}, overload(p, items, sections)
	}
	r := newRun(ctx, p, opt, items, sections, bound)
	if opt.Nodes != 0 {
		if l := r.search(); l != nil {
			return Solution{LowerBound: p.Capacity + 1, Nodes: r.nodes}, r.conflict(l)
		}
	}
	s := r.solution()
	if p.Capacity > 0 && s.Height > p.Capacity {
		return s, ErrUndecided
	}
	opt.Cache.put(p, opt, s)
	return s, nil
}

// A run is the state of one call of Pack.
type run struct {
	ctx     context.Context
	problem Problem
	opt     Options
	offsets []int64 // of peeled items, by index
	leaves  []leafState
	bound   int64 // no packing is lower
	goal    int64 // the height to reach: lower gains nothing
	nodes   int64
}

// A leafState is a leaf with the best packing so far.
type leafState struct {
	parts.Part
	parts.Packing       // offsets above base
	low           int64 // proven lower bound of the packing's height
}

func newRun(ctx context.Context, p Problem, opt Options, items []parts.Item, sections int32, bound int64) *run {
	r := &run{ctx: ctx, problem: p, opt: opt, offsets: make([]int64, len(items)), bound: bound, goal: max(bound, p.Capacity)}
	for _, l := range reduce(items, sections, r.offsets) {
		n := int64(len(l.Items))
		effort := min(max(fastEffort, fastPerItem*n), mostEffort)
		if opt.Nodes != 0 {
			effort = max(effort, min(exactHaste*effort, exactMost))
		}
		ls := leafState{Part: l, Packing: greedy(ctx, l.Items, l.Sections, r.goal-l.Base, effort)}
		ls.low = parts.RoundUp(slices.Max(parts.Loads(l.Items, l.Sections)), quantum(l.Items))
		if ls.Height > r.goal-l.Base && !opt.Flat {
			if q, ok := twoLevel(ctx, l, ls.Height, effort); ok {
				ls.Packing = q
			}
		}
		if ls.Height > r.goal-l.Base && opt.Without&Glue == 0 {
			r.glue(&ls)
		}
		if opt.Nodes != 0 && len(l.Items) > large {
			r.improve(&ls)
		}
		r.leaves = append(r.leaves, ls)
	}
	return r
}

// glue tries to pack a leaf without waste, in glueTime percent of the time left.
func (r *run) glue(l *leafState) {
	ctx := r.ctx
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)*glueTime/100)
		defer cancel()
	}
	p, nodes, ok := glue(ctx, l.Part, r.goal-l.Base, max(r.left(), glueLook))
	r.nodes += nodes
	if ok {
		l.Packing = p
	}
}

// improvable reports whether Options.Improve can do something for a leaf.
func (r *run) improvable(l *leafState) bool { return r.opt.Improve != nil && !pinned(l.Items) }

// improve lowers a leaf that is too high by Options.Improve.
func (r *run) improve(l *leafState) {
	if target := r.goal - l.Base; l.Height > target && r.improvable(l) {
		l.Packing = r.opt.Improve(r.ctx, l.Part, l.Packing, target)
	}
}

// pinned reports whether an item has a fixed offset.
func pinned(items []parts.Item) bool {
	return slices.ContainsFunc(items, func(it parts.Item) bool { return it.Fixed >= 0 })
}

// search improves the leaves that are too high, small ones first; those of
// middling size are searched briefly, improved, and searched again. It returns
// a leaf that is proven not to fit, or nil.
func (r *run) search() *leafState {
	order := make([]*leafState, len(r.leaves))
	for i := range r.leaves {
		order[i] = &r.leaves[i]
	}
	slices.SortStableFunc(order, func(a, b *leafState) int { return len(a.Items) - len(b.Items) })
	for _, l := range order {
		if l.Height <= r.goal-l.Base || len(l.Items) > searchable {
			continue
		}
		if n := len(l.Items); n > middling && n <= large && r.improvable(l) {
			if r.searchLeaf(l, glance) == impossible {
				return l
			}
			r.improve(l)
		}
		if r.searchLeaf(l, r.left()) == impossible {
			return l
		}
	}
	return nil
}

// searchLeaf searches a leaf that is too high, with at most the given nodes. It
// returns impossible if the leaf is proven not to fit.
func (r *run) searchLeaf(l *leafState, nodes int64) verdict {
	if l.Height <= r.goal-l.Base {
		return fits
	}
	if r.problem.Capacity > 0 {
		return r.decide(l, r.portfolio(l, r.goal-l.Base), nodes)
	}
	r.minimise(l, nodes)
	r.goal = max(r.goal, l.Base+l.low)
	return unknown
}

func (r *run) portfolio(l *leafState, capacity int64) *portfolio {
	return newPortfolio(l.Items, l.Sections, capacity, r.opt.Without)
}

// left returns the number of nodes still allowed.
func (r *run) left() int64 {
	if r.opt.Nodes < 0 {
		return math.MaxInt64 / 2
	}
	return r.opt.Nodes - r.nodes
}

// decide runs a portfolio and keeps the packing it finds.
func (r *run) decide(l *leafState, pf *portfolio, nodes int64) verdict {
	before := pf.nodes
	v, offsets := pf.decide(r.ctx, max(min(nodes, r.left()), 0), r.opt.Workers) // whole turns are taken: more may be spent than was left
	r.nodes += pf.nodes - before
	if v == fits {
		l.Packing = parts.Packing{Offsets: slices.Clone(offsets)}
		for i := range l.Items {
			l.Height = max(l.Height, offsets[i]+l.Items[i].Size)
		}
	}
	return v
}

// minimise raises the lower bound and lowers the packing until they meet or
// the effort ends. The lowest height still possible is tried first, since it
// usually is the answer, then ever higher ones, with growing budgets.
func (r *run) minimise(l *leafState, nodes int64) {
	end := r.nodes + min(nodes, r.left())
	step := quantum(l.Items)
	floor := max(l.low, parts.RoundUp(r.goal-l.Base, step)) // going lower gains nothing
	atFloor := r.portfolio(l, floor)
	for budget := int64(firstBudget); l.Height > floor && r.nodes < end && r.ctx.Err() == nil; {
		switch r.decide(l, atFloor, budget) {
		case fits:
			continue
		case impossible:
			floor += step
			l.low = floor
			atFloor = r.portfolio(l, floor)
			continue
		}
		for try := floor + (l.Height-floor)/2/step*step; try > floor && try < l.Height; try += max((l.Height-try)/2/step*step, step) {
			v := r.decide(l, r.portfolio(l, try), budget)
			if v == impossible {
				floor = try + step
				l.low = floor
				atFloor = r.portfolio(l, floor)
			}
			if v != unknown || r.ctx.Err() != nil {
				break
			}
		}
		budget *= growthFactor
	}
}

// quantum returns a number that divides every height of a canonical packing.
func quantum(items []parts.Item) int64 {
	var g int64
	for i := range items {
		it := &items[i]
		g = parts.GCD(parts.GCD(g, it.Size), parts.GCD(it.Align, max(it.Fixed, 0)))
	}
	return max(g, 1)
}

func (r *run) solution() Solution {
	s := Solution{Offsets: r.offsets, Nodes: r.nodes}
	if r.problem.Capacity == 0 {
		s.LowerBound = r.goal
	} else {
		s.LowerBound = r.bound
	}
	for i := range r.leaves {
		l := &r.leaves[i]
		for k := range l.Items {
			s.Offsets[l.Items[k].Index] = l.Base + l.Offsets[k]
		}
		s.LowerBound = max(s.LowerBound, l.Base+l.low)
	}
	for i, off := range s.Offsets {
		s.Height = max(s.Height, off+r.problem.Buffers[i].Size)
	}
	s.Optimal = s.Height == s.LowerBound
	return s
}
