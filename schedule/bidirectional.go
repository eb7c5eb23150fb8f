package schedule

import (
	"math"
	"sort"
)

// Schedules that fill the bubbles of one direction with the other: half of the micro-batches enter at the first rank, the
// other half at the last, so every rank holds two parts of the model and the weights exist twice (except for dualpipev,
// where the same ranks are folded to a V).
//
// Example (p=2, m=2): while rank 0 waits for the backward of d0 from rank 1, it runs forward and backward of u0.
// Weakness: mirror ranks must add up their gradients, and twice the weights leave less memory for anything else.

// opposite are the placements of two straight pipelines in opposite directions.
func opposite(ranks int) (down, up []int) {
	down = loop(ranks, 1)
	return down, reversed(down)
}

// chimera merges two 1F1B pipelines (Li and Hoefler 2021, Chimera). Groups of p micro-batches that follow each other leave
// gaps where backwards take longer than forwards; so for more than one group the orders of a list scheduler compete, with
// up to p or p+2 activations per rank, and the fastest for the given times wins (twice the forward, if none are given).
// Times 1 and 2 give 3m + 2(p-2), the closed form of the paper.
func chimera(q Request) (*Schedule, error) {
	best := chimeraGroups(q)
	if q.Micros <= q.Ranks {
		return best, nil
	}
	c := Costs{Times: Times{F: q.Costs.F, B: q.Costs.B + q.Costs.W}, Comm: q.Costs.Comm}
	if c.checkTimes() != nil {
		c.Times = Times{F: 1, B: 2}
	}
	least := runtime(best, c)
	for _, warm := range []float64{1.5, 1.875, 2} {
		for _, limit := range []int{q.Ranks, q.Ranks + 2} {
			s := empty(q, Arrows, best.Home...)
			if greedyOrder(s, c, float64(limit), policy{warm: warm, forward: true, deep: true}, nil) {
				s.joinBackwards()
				if t := runtime(s, c); t < least {
					best, least = s, t
				}
			}
		}
	}
	return best, nil
}

// runtime is the makespan of an order that is known to run.
func runtime(s *Schedule, c Costs) float64 {
	m := newMachine(s, c)
	if !m.run() {
		return math.Inf(1)
	}
	return m.score(false).first
}

// joinBackwards makes every input gradient a full backward and drops the weight gradients.
func (s *Schedule) joinBackwards() {
	for r, order := range s.Orders {
		kept := order[:0]
		for _, u := range order {
			if u.Pass == Bx {
				u.Pass = B
			}
			if u.Pass != W {
				kept = append(kept, u)
			}
		}
		s.Orders[r] = kept
	}
}

// chimeraGroups is the order for passes of one slot each: forward i of position s in slot s+2i and backward i in slot
// 2p-1-s+2i never collide with the other direction's for even p, and groups of p micro-batches follow each other 2p slots
// later, without a gap.
func chimeraGroups(q Request) *Schedule {
	p, half := q.Ranks, q.Micros/2
	down, up := opposite(p)
	s := empty(q, Arrows, down, up)
	type slotted struct {
		slot int
		unit Unit
	}
	return s.fill(func(r int) []Unit {
		var all []slotted
		for dir, position := range [2]int{r, p - 1 - r} {
			for i := range half {
				at := i/(p/2)*2*p + i%(p/2)*2
				all = append(all,
					slotted{at + position, Unit{Pass: F, Dir: dir, Stage: position, Micro: i}},
					slotted{at + 2*p - 1 - position, Unit{Pass: B, Dir: dir, Stage: position, Micro: i}})
			}
		}
		sort.Slice(all, func(i, j int) bool { return all[i].slot < all[j].slot })
		order := make([]Unit, len(all))
		for i, a := range all {
			order[i] = a.unit
		}
		return order
	})
}

// queue hands out the units of one pass of one stage in micro-batch order.
type queue struct {
	unit Unit
	next int
}

func (b *queue) take() Unit {
	u := b.unit
	u.Micro = b.next
	b.next++
	return u
}

// bitpipe runs two V-shaped pipelines in opposite directions (Wu et al. 2024, BitPipe, 2410.19367): rank r holds two
// stages of each. Groups of p micro-batches (half each way) are made by merging a list of forwards with a list of
// backwards, and follow each other in one-forward-one-backward order.
func bitpipe(q Request) (*Schedule, error) {
	down := vee(q.Ranks)
	s := empty(q, Arrows, down, reversed(down))
	return s.fill(func(r int) []Unit {
		forwards, backwards := bitpipeLists(q.Ranks, q.Micros, r)
		return bitpipeMerge(q.Ranks, r, forwards, backwards)
	}), nil
}

// bitpipeLists are all forwards and all backwards of rank r in the order of their own pass.
func bitpipeLists(p, m, r int) (forwards, backwards []Unit) {
	u, own, q := p/2, 0, p/2-r
	if r >= u {
		own, q = 1, r-u+1
	}
	other := 1 - own
	var lower, upper [2]int // stages of rank r in each direction
	for dir, near := range [2]int{r, p - 1 - r} {
		lower[dir], upper[dir] = near, 2*p-1-near
	}
	fill := func(pass Pass, ownFirst, otherFirst, otherSecond, ownSecond int) []Unit {
		of := &queue{unit: Unit{Pass: pass, Dir: own, Stage: ownFirst}}
		os := &queue{unit: Unit{Pass: pass, Dir: own, Stage: ownSecond}}
		tf := &queue{unit: Unit{Pass: pass, Dir: other, Stage: otherFirst}}
		ts := &queue{unit: Unit{Pass: pass, Dir: other, Stage: otherSecond}}
		var list []Unit
		repeat := func(n int, queues ...*queue) {
			for range n {
				for _, b := range queues {
					list = append(list, b.take())
				}
			}
		}
		for range m / p {
			repeat(q, of)
			repeat(u-q, tf, of)
			repeat(q, tf, ts)
			repeat(u-q, os, ts)
			repeat(q, os)
		}
		return list
	}
	forwards = fill(F, lower[own], lower[other], upper[other], upper[own])
	backwards = fill(B, upper[own], upper[other], lower[other], lower[own])
	return forwards, backwards
}

// bitpipeMerge interleaves the two lists: per group of 2p forwards, w warm-up forwards, then rem pairs; between groups
// some backwards, pairs of the next group's forwards with this group's backwards, and forwards.
func bitpipeMerge(p, r int, forwards, backwards []Unit) []Unit {
	var order []Unit
	f := func(n int) { order, forwards = append(order, forwards[:n]...), forwards[n:] }
	b := func(n int) { order, backwards = append(order, backwards[:n]...), backwards[n:] }
	pairs := func(n int) {
		for range n {
			f(1)
			b(1)
		}
	}
	w := 3*p/2 + min(r, p-1-r)
	rem := 2*p - w
	f(w)
	pairs(rem)
	for len(forwards) > 0 {
		b(w - rem + 1)
		pairs(rem - 1)
		f(w - rem + 1)
		pairs(rem)
	}
	b(len(backwards))
	return order
}

// bitpipeRounds: whole groups only.
func bitpipeRounds(q Request) *UsageError {
	if q.Micros%q.Ranks != 0 {
		return &UsageError{Why: "bitpipe repeats a unit of as many micro-batches as ranks",
			Hint: "take " + plural((q.Micros/q.Ranks+1)*q.Ranks, "micro-batch")}
	}
	return nil
}

// dualpipe overlaps a forward of one direction with a full backward of the other (DeepSeek-AI 2024, DeepSeek-V3 3.2.1).
func dualpipe(q Request) (*Schedule, error) {
	p := q.Ranks
	down, up := opposite(p)
	s := empty(q, Primes, down, up)
	return s.fill(func(r int) []Unit {
		near := 0 // the direction that enters at this half of the ranks
		if r >= p/2 {
			near = 1
		}
		phases := [2]Unit{{Dir: near, Stage: min(r, p-1-r)}, {Dir: 1 - near, Stage: max(r, p-1-r)}}
		return dualpipeOrder(p, q.Micros/2, min(r, p-1-r), phases)
	}), nil
}

// dualpipeV is dualpipe cut in half: p ranks run the program of the first p of 2p ranks, with two chunks of one V instead
// of two directions, so the weights exist once (Qi et al. 2024, "cut-in-half").
func dualpipeV(q Request) (*Schedule, error) {
	p := q.Ranks
	s := empty(q, Primes, vee(p))
	return s.fill(func(r int) []Unit {
		return dualpipeOrder(2*p, q.Micros, r, [2]Unit{{Stage: r}, {Stage: 2*p - 1 - r}})
	}), nil
}

// dualpipeOrder is the program of the rank that is q away from its end of p ranks, with half micro-batches per phase;
// phase 0 enters at the near end. The eight steps are those of the source.
func dualpipeOrder(p, half, q int, phases [2]Unit) []Unit {
	var order, pending []Unit // pending: weight gradients put off
	var forwards, backwards [2]int
	forward := func(phase int) {
		u := phases[phase]
		u.Pass, u.Micro = F, forwards[phase]
		forwards[phase]++
		order = append(order, u)
	}
	backward := func(phase int, pass Pass) {
		u := phases[phase]
		u.Pass, u.Micro = pass, backwards[phase]
		backwards[phase]++
		order = append(order, u)
		if pass == Bx {
			u.Pass = W
			pending = append(pending, u)
		}
	}
	weight := func() { order, pending = append(order, pending[0]), pending[1:] }
	joined := func(f, b int) {
		forward(f)
		backward(b, B)
		order[len(order)-1].Joined = true
	}
	far := p/2 - 1 - q // distance from the middle
	for range 2 * far {
		forward(0)
	}
	for range q + 1 {
		forward(0)
		forward(1)
	}
	for range far {
		backward(1, Bx)
		weight()
		forward(1)
	}
	for i := range half - p + q + 1 {
		if i == 0 && far == 0 { // nothing has come back yet that could overlap with the first forward
			forward(0)
			backward(1, B)
		} else {
			joined(0, 1)
		}
		joined(1, 0)
	}
	for range far {
		backward(1, B)
		joined(1, 0)
	}
	for i := range 2 * (q + 1) { // the second half computes input gradients only
		pass := B
		if i >= q+1 {
			pass = Bx
		}
		backward(1-i%2, pass)
	}
	for range far {
		weight()
		backward(0, Bx)
	}
	for range q + 1 {
		weight()
	}
	return order
}

// twoPerRank: the program of dualpipe fills the whole pipe before its steady part.
func twoPerRank(q Request) *UsageError {
	if q.Micros < 2*q.Ranks {
		return &UsageError{Why: "this schedule needs at least two micro-batches per rank",
			Hint: "take " + plural(2*q.Ranks, "micro-batch") + " or more"}
	}
	return nil
}
