package pipeline

import (
	"math/rand/v2"

	"github.com/athanor-llm/athanor/schedule"
)

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
	s     *schedule.Schedule
	c     schedule.Costs
	clock *schedule.Clock
	cap   float64 // in chunks of one micro-batch; 0: none
	span  bool    // minimise the longest span instead of the makespan
	rng   *rand.Rand
	block []place // positions on a critical path, latest first, whose predecessor on the rank is on it too
}

// place is a position in the order of a rank.
type place struct{ rank, position int }

// evaluate runs the orders. It returns false if the ranks deadlock.
func (v *improver) evaluate() (schedule.Score, bool) {
	if !v.clock.Run() {
		return schedule.Score{}, false
	}
	return v.clock.Score(v.span), true
}

// improve tries moves until it has executed budget units or the objective reaches target.
// It leaves the best orders found in the schedule and returns their score.
func (v *improver) improve(budget int, target float64) schedule.Score {
	s := v.s
	current, ok := v.evaluate()
	units := 0
	for _, order := range s.Orders {
		units += len(order)
	}
	best := current
	if !ok || s.Overlaps() { // moves would separate overlapped pairs
		return best
	}
	kept := copyOrders(s.Orders)
	history := make([]schedule.Score, lateness)
	for i := range history {
		history[i] = current
	}
	v.trace()
	for i := 0; budget > 0 && target*(1+1e-9) < best.First; i++ {
		undo := v.move()
		if undo == nil {
			budget-- // although nothing was run, so that the loop ends
			continue
		}
		budget -= units
		next, ok := v.evaluate()
		if old := history[i%lateness]; !ok || old.Less(next) && current.Less(next) {
			undo()
			continue
		}
		current = next
		history[i%lateness] = current
		if current.Less(best) {
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

// longestOrder returns the number of units of the busiest rank.
func longestOrder(orders [][]schedule.Unit) (n int) {
	for _, order := range orders {
		n = max(n, len(order))
	}
	return n
}

func copyOrders(orders [][]schedule.Unit) [][]schedule.Unit {
	kept := make([][]schedule.Unit, len(orders))
	for r, order := range orders {
		kept[r] = append([]schedule.Unit(nil), order...)
	}
	return kept
}

// trace collects the blocks of one critical path of the last run, from its end.
func (v *improver) trace() {
	m, s := v.clock, v.s
	v.block = v.block[:0]
	last := 0
	for r, order := range s.Orders {
		if len(order) > 0 && (len(s.Orders[last]) == 0 || m.End[r][len(order)-1] > m.End[last][len(s.Orders[last])-1]) {
			last = r
		}
	}
	r, j := last, len(s.Orders[last])-1
	where := m.Positions()
	for range s.Ranks * longestOrder(s.Orders) { // at most all units
		begin := m.Start[r][j]
		if j > 0 && m.End[r][j-1] == begin {
			v.block = append(v.block, place{r, j})
			j--
			continue
		}
		found := false
		for _, d := range s.Inputs(s.Orders[r][j], nil) {
			to := s.Home[d.Dir][d.Stage]
			at := m.Done(d)
			if to != r {
				at += v.c.Comm
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
	s := v.s
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
func legal(order []schedule.Unit, from, to int) bool {
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
func shift(order []schedule.Unit, from, to int) {
	u := order[from]
	if from < to {
		copy(order[from:to], order[from+1:to+1])
	} else {
		copy(order[to+1:from+1], order[to:from])
	}
	order[to] = u
}

// fits reports whether an order keeps the cap.
func (v *improver) fits(order []schedule.Unit) bool {
	if v.cap == 0 {
		return true
	}
	held, limit := 0.0, v.cap*float64(v.s.Slices)+1e-9
	for _, u := range order {
		if held += v.c.Memory(u); held > limit {
			return false
		}
	}
	return true
}
