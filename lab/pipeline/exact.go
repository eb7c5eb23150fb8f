package pipeline

import (
	"math"

	"github.com/athanor-llm/athanor/schedule"
)

// Exact search: branch and bound over all orders on one placement, for schedules of a few
// dozen units.
//
// Approach. All micro-batches of a direction are alike, so without loss of generality a
// stage runs each of its passes in order of micro-batches. A partial schedule is then
// given by how many units of each pass each stage has completed, and when.
//
// Branching follows Giffler and Thompson (1960). Of all units that could run next, take
// the one that would end first, at time t on rank r. The unit that r runs next in an
// optimal schedule starts before t, so one branch for each such unit suffices. Under a
// memory cap this is wrong for forwards, since running one earlier may leave no room for
// others; then another branch forbids r from running that forward next.
//
// Branches are pruned by a lower bound and by dominance: of two partial schedules with
// equal counts, one whose ranks are free no earlier and whose results arrive no earlier
// cannot win.
//
// Example: for p=2, m=4, one direction and all times 1, 13 is optimal: the last rank
// starts at 1 and has 12 units of work.
// Weakness: exponential time. It minimises the makespan only, for one slice, without
// parameter gathers or overlapped pairs.

// exact is the state of one branch and bound.
type exact struct {
	s       *schedule.Schedule
	c       schedule.Costs
	cap     float64           // chunk activations
	nodes   int               // that may still be explored
	best    float64           // least makespan so far
	orders  [][]schedule.Unit // with that makespan
	kinds   []kind
	byRank  [][]int                // indices of kinds
	seen    map[string][][]float64 // partial schedules by counts, see dominated
	current [][]schedule.Unit      // orders of the current partial schedule
	m       int                    // micro-batches per direction
}

// kind is one pass of one stage: a queue of m units that differ in the micro-batch only.
type kind struct {
	unit   schedule.Unit
	rank   int
	time   float64
	memory float64   // that a unit adds
	inputs []int     // kinds whose i-th unit precedes the i-th of this one
	delays []float64 // message time of each input
	output []int     // the inverse of inputs
	tail   float64   // lower bound of the time from the end of a unit to the end of the step
	done   int       // units
	ends   []float64 // of the units done
	banned bool      // its rank must run something else first
}

// exactSolve searches for orders on s's placement with a makespan below upper, under a cap
// of limit chunk activations. orders is nil if it finds none. complete reports that all
// was explored within the given nodes; then no order has a makespan below the returned
// one, which is upper if there are no orders.
func exactSolve(s *schedule.Schedule, c schedule.Costs, limit, upper float64, nodes int) (orders [][]schedule.Unit, makespan float64, complete bool) {
	e := &exact{s: s, c: c, cap: limit, nodes: nodes, best: upper, m: s.MicrosPerDirection(), seen: map[string][][]float64{}}
	e.setup()
	e.current = make([][]schedule.Unit, s.Ranks)
	e.branch(make([]float64, s.Ranks), make([]float64, s.Ranks), 0)
	return e.orders, e.best, e.nodes > 0
}

// setup creates the kinds and their dependencies.
func (e *exact) setup() {
	s := e.s
	e.byRank = make([][]int, s.Ranks)
	index := map[schedule.Unit]int{}
	for dir, home := range s.Home {
		for stage, r := range home {
			for _, pass := range []schedule.Pass{schedule.F, schedule.Bx, schedule.W} {
				u := schedule.Unit{Pass: pass, Dir: dir, Stage: stage}
				index[u] = len(e.kinds)
				e.byRank[r] = append(e.byRank[r], len(e.kinds))
				e.kinds = append(e.kinds, kind{unit: u, rank: r, time: e.c.Of(u), memory: e.c.Memory(u), ends: make([]float64, e.m)})
			}
		}
	}
	for i := range e.kinds {
		k := &e.kinds[i]
		for _, d := range s.Inputs(k.unit, nil) {
			from := index[d]
			delay := 0.0
			if e.kinds[from].rank != k.rank {
				delay = e.c.Comm
			}
			k.inputs, k.delays = append(k.inputs, from), append(k.delays, delay)
			e.kinds[from].output = append(e.kinds[from].output, i)
		}
	}
	for _, pass := range []schedule.Pass{schedule.W, schedule.Bx, schedule.F} { // in this order outputs have their tails first
		for n := range s.Stages() {
			for dir := range s.Home {
				stage := n
				if pass == schedule.F {
					stage = s.Stages() - 1 - n
				}
				k := &e.kinds[index[schedule.Unit{Pass: pass, Dir: dir, Stage: stage}]]
				for _, o := range k.output {
					after := &e.kinds[o]
					delay := 0.0
					if after.rank != k.rank {
						delay = e.c.Comm
					}
					k.tail = max(k.tail, delay+after.time+after.tail)
				}
			}
		}
	}
}

// ready returns when the next unit of a kind could start on its rank, given when the rank
// is free and how much it holds. It returns false if there is no such unit, an input is
// not scheduled, or memory is short.
func (e *exact) ready(k *kind, free, held float64) (float64, bool) {
	if k.done == e.m || held+k.memory > e.cap+1e-9 {
		return 0, false
	}
	for n, i := range k.inputs {
		in := &e.kinds[i]
		if in.done <= k.done {
			return 0, false
		}
		free = max(free, in.ends[k.done]+k.delays[n])
	}
	return free, true
}

// branch explores all completions of the current partial schedule, which has the given
// number of units. free and held are by rank.
func (e *exact) branch(free, held []float64, units int) {
	if e.nodes--; e.nodes <= 0 {
		return
	}
	if units == len(e.kinds)*e.m {
		e.best = 0
		for _, f := range free {
			e.best = max(e.best, f)
		}
		e.orders = copyOrders(e.current)
		return
	}
	if e.bound(free) >= e.best*(1-1e-9) || e.dominated(free) {
		return
	}
	first, end := -1, math.Inf(1)
	for i := range e.kinds {
		k := &e.kinds[i]
		if k.banned {
			continue
		}
		if at, ok := e.ready(k, free[k.rank], held[k.rank]); ok && at+k.time < end {
			first, end = i, at+k.time
		}
	}
	if first < 0 {
		return
	}
	r := e.kinds[first].rank
	for _, i := range e.order(r) {
		k := &e.kinds[i]
		if at, ok := e.ready(k, free[r], held[r]); ok && !k.banned && (at < end-1e-12 || i == first) {
			e.extend(i, at, free, held, units)
		}
	}
	if k := &e.kinds[first]; k.unit.Pass == schedule.F && !math.IsInf(e.cap, 1) {
		k.banned = true
		e.branch(free, held, units)
		k.banned = false
	}
}

// order returns the kinds of rank r in the order in which they are tried: input
// gradients, forwards, weight gradients.
func (e *exact) order(r int) []int {
	var list []int
	for _, pass := range []schedule.Pass{schedule.Bx, schedule.F, schedule.W} {
		for _, i := range e.byRank[r] {
			if e.kinds[i].unit.Pass == pass {
				list = append(list, i)
			}
		}
	}
	return list
}

// extend schedules the next unit of kind i at time at, branches, and takes it back.
func (e *exact) extend(i int, at float64, free, held []float64, units int) {
	k := &e.kinds[i]
	r := k.rank
	var lifted []int // bans end when the rank runs something else
	for _, j := range e.byRank[r] {
		if e.kinds[j].banned {
			e.kinds[j].banned = false
			lifted = append(lifted, j)
		}
	}
	oldFree, oldHeld := free[r], held[r]
	free[r], held[r] = at+k.time, held[r]+k.memory
	k.ends[k.done] = free[r]
	u := k.unit
	u.Micro = k.done
	k.done++
	e.current[r] = append(e.current[r], u)
	e.branch(free, held, units+1)
	e.current[r] = e.current[r][:len(e.current[r])-1]
	k.done--
	free[r], held[r] = oldFree, oldHeld
	for _, j := range lifted {
		e.kinds[j].banned = true
	}
}

// bound returns a lower bound on the makespan of all completions: each rank has the rest
// of its work to do, from its earliest possible start on, and then at least the shortest
// tail follows.
func (e *exact) bound(free []float64) float64 {
	bound := 0.0
	heads := e.heads(free)
	for r, list := range e.byRank {
		start, startMain := math.Inf(1), math.Inf(1)
		work, workMain, tail := 0.0, 0.0, math.Inf(1)
		for _, i := range list {
			k := &e.kinds[i]
			if k.done == e.m {
				continue
			}
			n := float64(e.m - k.done)
			start = min(start, heads[i])
			work += n * k.time
			bound = max(bound, heads[i]+n*k.time+k.tail)
			if k.unit.Pass != schedule.W {
				startMain = min(startMain, heads[i])
				workMain += n * k.time
				tail = min(tail, k.tail)
			}
		}
		if work > 0 {
			bound = max(bound, max(free[r], start)+work)
		}
		if workMain > 0 {
			bound = max(bound, max(free[r], startMain)+workMain+tail)
		}
		bound = max(bound, free[r])
	}
	return bound
}

// heads returns a lower bound on the start of the next unit of each kind: the start if
// every rank could run all of its kinds at once.
func (e *exact) heads(free []float64) []float64 {
	heads := make([]float64, len(e.kinds))
	visit := func(i int) {
		k := &e.kinds[i]
		at := free[k.rank]
		for n, j := range k.inputs {
			in := &e.kinds[j]
			if in.done > k.done {
				at = max(at, in.ends[k.done]+k.delays[n])
			} else { // the input's queue must run all its units up to the needed one
				at = max(at, heads[j]+float64(k.done-in.done+1)*in.time+k.delays[n])
			}
		}
		heads[i] = at
	}
	stages := e.s.Stages()
	for dir := range e.s.Home {
		base := dir * stages * 3
		for stage := range stages {
			visit(base + 3*stage)
		}
		for stage := stages - 1; stage >= 0; stage-- {
			visit(base + 3*stage + 1)
			visit(base + 3*stage + 2)
		}
	}
	return heads
}

// dominated reports whether an earlier partial schedule with the same counts and bans was
// nowhere later. If not, it records the current one.
func (e *exact) dominated(free []float64) bool {
	key := make([]byte, 0, 2*len(e.kinds))
	times := append([]float64(nil), free...)
	for i := range e.kinds {
		k := &e.kinds[i]
		key = append(key, byte(k.done), byte(k.done>>8))
		if k.banned {
			key[len(key)-1] |= 0x80
		}
		for n := k.done - 1; n >= 0; n-- { // only results that are still needed
			needed := false
			for _, o := range k.output {
				needed = needed || e.kinds[o].done <= n
			}
			if !needed {
				break
			}
			times = append(times, k.ends[n])
		}
	}
	list := e.seen[string(key)]
	for _, old := range list {
		if noLater(old, times) {
			return true
		}
	}
	kept := list[:0]
	for _, old := range list {
		if !noLater(times, old) {
			kept = append(kept, old)
		}
	}
	e.seen[string(key)] = append(kept, times)
	return false
}

func noLater(a, b []float64) bool {
	for i := range a {
		if a[i] > b[i]+1e-12 {
			return false
		}
	}
	return true
}

// smallest is the size, in units, up to which Search runs the exact search by default.
const smallest = 48

// bound returns a lower bound on the objective over all allowed placements.
func (g Goal) bound() float64 {
	least := math.Inf(1)
	for _, place := range g.placements() {
		least = min(least, placementBound(place, g.Costs, g.Span))
	}
	return least
}

// placementBound returns a lower bound for s's placement: the largest work of a rank,
// for the makespan plus the earliest arrival of its first input.
func placementBound(s *schedule.Schedule, c schedule.Costs, span bool) float64 {
	work := make([]float64, s.Ranks)
	head := make([]float64, s.Ranks)
	for r := range head {
		head[r] = math.Inf(1)
	}
	for dir, home := range s.Home {
		at := 0.0
		for stage, r := range home {
			if stage > 0 && home[stage-1] != r {
				at += c.Comm
			}
			head[r] = min(head[r], at)
			at += sliceTime(c, schedule.Unit{Pass: schedule.F, Dir: dir, Stage: stage}, 0)
			for _, pass := range []schedule.Pass{schedule.F, schedule.Bx, schedule.W} {
				for q := range s.Slices {
					work[r] += float64(s.MicrosPerDirection()) * sliceTime(c, schedule.Unit{Pass: pass, Dir: dir, Stage: stage}, q)
				}
			}
		}
	}
	bound := 0.0
	for r := range work {
		if span {
			head[r] = 0
		}
		pair := 1.0
		if alone := c.F + c.B + c.W; c.Pair > 0 && c.Pair < alone {
			pair = c.Pair / alone
		}
		bound = max(bound, head[r]+work[r]*pair)
	}
	return bound
}

func sliceTime(c schedule.Costs, u schedule.Unit, slice int) float64 {
	u.Slice = slice
	return c.Of(u)
}

// prove runs the exact search on all placements. It returns the better of best and what
// it finds, and a lower bound on the objective over all placements, which is 0 if the
// search does not apply.
func (g Goal) prove(best candidate) (candidate, float64) {
	nodes := g.Nodes
	if nodes == 0 && g.size() <= smallest {
		nodes = 200000
	}
	if nodes == 0 || g.Span || g.Slices > 1 || g.Costs.Pair > 0 || g.Costs.Buffers > 0 && g.Costs.Gather > 0 {
		return best, 0
	}
	bound := math.Inf(1)
	for _, place := range g.placements() {
		orders, time, complete := exactSolve(place, g.Costs, g.Cap, best.score.First, nodes)
		if orders != nil {
			s := *place
			s.Orders = orders
			if sc, ok := g.rate(&s); ok && sc.First < best.score.First {
				best = candidate{&s, sc}
			}
		}
		if complete {
			bound = min(bound, time)
		} else {
			bound = min(bound, placementBound(place, g.Costs, false))
		}
	}
	return best, min(bound, best.score.First)
}
