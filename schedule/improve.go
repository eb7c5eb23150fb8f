package schedule

import "math/rand/v2"

// Local search on orders. The makespan is the length of a critical path of units, each of
// which starts when the one before it on the path has ended (and its message arrived).
// Units that follow each other on the path and on one rank form a block. As in job-shop
// scheduling, only changes of blocks can shorten the path (Grabowski et al. 1986, Nowicki
// and Smutnicki 1996). So three moves in four shift a unit within its block, the others
// shift any unit by a few positions.
//
// Moves are accepted by late-acceptance hill climbing (Burke and Bykov 2017): a new order
// must not be worse than both the current one and the one 150 moves ago. That needs no
// temperature and leaves plateaus easily.
//
// Weakness: every move is evaluated by running the whole order, so large schedules get
// few moves.

const lateness = 150 // length of the acceptance history, in moves

// improver searches from one schedule, which it changes in place.
type improver struct {
	m     *machine
	cap   float64 // in chunks of one micro-batch; 0: none
	span  bool    // minimise the longest span instead of the makespan
	rng   *rand.Rand
	block []place // positions on a critical path, latest first, whose predecessor on the rank is on it too
}

// place is a position in the order of a rank.
type place struct{ rank, position int }

// score is what is minimised: first the objective, then the sum of the other objective
// (of makespan and longest span) and the mean end of the ranks.
type score struct{ first, second float64 }

func (a score) less(b score) bool {
	const eps = 1e-9
	if d := a.first - b.first; d < -eps*(1+b.first) || d > eps*(1+b.first) {
		return d < 0
	}
	return a.second < b.second-eps*(1+b.second)
}

// evaluate runs the orders. It returns false if the ranks deadlock.
func (v *improver) evaluate() (score, bool) {
	if !v.m.run() {
		return score{}, false
	}
	return v.m.score(v.span), true
}

// score returns the score of the last run.
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

// improve tries moves until it has executed budget units or the objective reaches target.
// It leaves the best orders found in the schedule and returns their score.
func (v *improver) improve(budget int, target float64) score {
	s := v.m.s
	current, ok := v.evaluate()
	units := 0
	for _, order := range s.Orders {
		units += len(order)
	}
	best := current
	if !ok || s.overlaps() { // moves would separate overlapped pairs
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
			budget-- // although nothing was run, so that the loop ends
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

// trace collects the blocks of one critical path of the last run, from its end.
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

// move makes a random move and returns a function that undoes it, or nil if the move would
// change nothing, be illegal or exceed the cap.
func (v *improver) move() (undo func()) {
	s := v.m.s
	var r, from, to int
	if len(v.block) > 0 && v.rng.IntN(4) > 0 {
		at := v.rng.IntN(len(v.block))
		r, from = v.block[at].rank, v.block[at].position
		// the block ends where the next place is not the position before
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

// legal reports whether the unit at position from passes no unit of the same pass and
// stage, or of the same stage, micro-batch and slice, on its way to position to. The
// latter depend on each other; passing the former only exchanges micro-batches.
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

// shift moves the unit at position from to position to.
func shift(order []Unit, from, to int) {
	u := order[from]
	if from < to {
		copy(order[from:to], order[from+1:to+1])
	} else {
		copy(order[to+1:from+1], order[to:from])
	}
	order[to] = u
}

// fits reports whether an order keeps the cap.
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
