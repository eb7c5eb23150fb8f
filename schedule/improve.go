package schedule

import "math/rand/v2"

// Local search on orders. The makespan is the length of a path through units that wait for each other; on that path, units
// of one rank that follow each other without a gap form a block. Only changing a block can shorten the path (as in job-shop
// scheduling: Grabowski et al. 1986, Nowicki and Smutnicki 1996), so a move takes a unit of a block to another place of the
// same block, or now and then any unit to a place nearby.
//
// Moves are accepted by late-acceptance hill climbing (Burke and Bykov 2017): a new order may not be worse than the one
// some hundred moves ago. That needs no temperature and leaves plateaus easily.
//
// Weakness: every move is evaluated by running the whole order, so large schedules get few moves.

const lateness = 150 // length of the acceptance history

// improver searches around one schedule, in place.
type improver struct {
	m     *machine
	cap   float64
	span  bool // minimise the longest span instead of the makespan
	rng   *rand.Rand
	block []place // positions on a critical path whose unit before on the rank is critical too
}

// place is a position in the order of a rank.
type place struct{ rank, position int }

// score is what is minimised: the objective first, then how early the ranks end.
type score struct{ first, second float64 }

func (a score) less(b score) bool {
	const eps = 1e-9
	if d := a.first - b.first; d < -eps*(1+b.first) || d > eps*(1+b.first) {
		return d < 0
	}
	return a.second < b.second-eps*(1+b.second)
}

// evaluate runs the order; false if the ranks wait for each other.
func (v *improver) evaluate() (score, bool) {
	if !v.m.run() {
		return score{}, false
	}
	return v.m.score(v.span), true
}

// score is the result of the last run.
func (m *machine) score(span bool) score {
	makespan, longest, ends := 0.0, 0.0, 0.0
	for r, order := range m.s.Orders {
		if n := len(order); n > 0 {
			makespan = max(makespan, m.end[r][n-1])
			longest = max(longest, m.end[r][n-1]-m.start[r][0])
			ends += m.end[r][n-1]
		}
	}
	if span {
		makespan, longest = longest, makespan
	}
	return score{makespan, longest + ends/float64(m.s.Ranks)}
}

// improve tries moves until the budget of unit executions is used up or target is reached; the schedule ends as the best
// order found.
func (v *improver) improve(budget int, target float64) score {
	s := v.m.s
	current, ok := v.evaluate()
	units := 0
	for _, order := range s.Orders {
		units += len(order)
	}
	best := current
	if !ok || s.overlaps() { // pairs stay together: such an order is left as it is
		return best
	}
	kept := copyOrders(s.Orders)
	history := make([]score, lateness)
	for i := range history {
		history[i] = current
	}
	v.trace()
	for i := 0; budget > 0 && target*(1+1e-9) < best.first; i++ {
		undo := v.move()
		if undo == nil {
			budget-- // nothing was run
			continue
		}
		budget -= units
		next, ok := v.evaluate()
		if old := history[i%lateness]; !ok || old.less(next) && current.less(next) {
			undo()
			continue
		}
		current = next
		history[i%lateness] = current
		if current.less(best) {
			best = current
			for r := range kept {
				copy(kept[r], s.Orders[r])
			}
		}
		v.trace()
	}
	for r := range kept {
		copy(s.Orders[r], kept[r])
	}
	return best
}

func copyOrders(orders [][]Unit) [][]Unit {
	kept := make([][]Unit, len(orders))
	for r, order := range orders {
		kept[r] = append([]Unit(nil), order...)
	}
	return kept
}

// trace walks one critical path of the last run backwards and collects its blocks.
func (v *improver) trace() {
	m, s := v.m, v.m.s
	v.block = v.block[:0]
	last := 0
	for r, order := range s.Orders {
		if len(order) > 0 && (len(s.Orders[last]) == 0 || m.end[r][len(order)-1] > m.end[last][len(s.Orders[last])-1]) {
			last = r
		}
	}
	r, j := last, len(s.Orders[last])-1
	where := m.positions()
	for range 4 * s.slots() { // at most all units
		begin := m.start[r][j]
		if j > 0 && m.end[r][j-1] == begin {
			v.block = append(v.block, place{r, j})
			j--
			continue
		}
		found := false
		for _, d := range s.Inputs(s.Orders[r][j], nil) {
			to := s.Home[d.Dir][d.Stage]
			at := m.done[0][s.index(d)]
			if d.Pass != F {
				at = m.done[1][s.index(d)]
			}
			if to != r {
				at += m.c.Comm
			}
			if at == begin {
				r, j, found = to, where(d), true
				break
			}
		}
		if !found {
			return
		}
	}
}

// move changes one order and returns how to undo it, or nil if the move would change nothing or break the cap.
func (v *improver) move() (undo func()) {
	s := v.m.s
	var r, from, to int
	if len(v.block) > 0 && v.rng.IntN(4) > 0 {
		at := v.rng.IntN(len(v.block))
		r, from = v.block[at].rank, v.block[at].position
		// the block ends where the next critical place is not the one before
		length := 1
		for at+length < len(v.block) && v.block[at+length] == (place{r, from - length}) {
			length++
		}
		to = from - 1 - v.rng.IntN(length)
		if v.rng.IntN(2) == 0 {
			from, to = to, from
		}
	} else {
		r = v.rng.IntN(s.Ranks)
		if len(s.Orders[r]) < 2 {
			return nil
		}
		from = v.rng.IntN(len(s.Orders[r]))
		to = min(max(from-6+v.rng.IntN(13), 0), len(s.Orders[r])-1)
	}
	order := s.Orders[r]
	if from == to || !legal(order, from, to) {
		return nil
	}
	shift(order, from, to)
	if !v.fits(order) {
		shift(order, to, from)
		return nil
	}
	return func() { shift(order, to, from) }
}

// legal says whether the unit at from can be taken to position to without passing a unit of the same stage and
// micro-batch, or of the same queue, which would be a detour or no change.
func legal(order []Unit, from, to int) bool {
	u := order[from]
	step := 1
	if to < from {
		step = -1
	}
	for i := from; i != to; i += step {
		o := order[i+step]
		if o.Dir == u.Dir && o.Stage == u.Stage && (o.Pass == u.Pass || o.Micro == u.Micro && o.Slice == u.Slice) {
			return false
		}
	}
	return true
}

// shift moves one unit and lets the ones between close up.
func shift(order []Unit, from, to int) {
	u := order[from]
	if from < to {
		copy(order[from:to], order[from+1:to+1])
	} else {
		copy(order[to+1:from+1], order[to:from])
	}
	order[to] = u
}

// fits says whether an order keeps the cap.
func (v *improver) fits(order []Unit) bool {
	if v.cap == 0 {
		return true
	}
	held, limit := 0.0, v.cap*float64(v.m.s.Slices)+1e-9
	for _, u := range order {
		if held += v.m.c.memory(u); held > limit {
			return false
		}
	}
	return true
}
