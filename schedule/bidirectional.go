package schedule

import (
	"math"
	"sort"
)

// Bidirectional schedules fill the bubbles of one direction with work of the other: half
// of the micro-batches enter at the first rank, the other half at the last. So every
// rank holds two parts of the model, and there are two copies of the weights. (dualpipev
// folds dualpipe to a V with one copy.)
//
// Example (Chimera, p=2, m=2): while rank 0 waits for rank 1 to return the backward of
// d0, it runs the forward and backward of u0.
// Weakness: the ranks that hold the same stage must add up their gradients, and the
// second copy of the weights takes memory.

// Opposite returns the placements of two pipelines with one chunk per rank, in opposite
// directions.
func Opposite(ranks int) (down, up []int) {
	down = Loop(ranks, 1)
	return down, Reversed(down)
}

// chimera merges two 1F1B pipelines (Li and Hoefler 2021, Chimera). Concatenated groups of
// p micro-batches leave bubbles if backwards are longer than forwards. So for more than
// one group, chimera also tries orders of the list scheduler, with at most p or p+2
// activations per rank, and returns the fastest one under q's times (by default a
// backward of twice the forward).
//
// With forwards of 1 and backwards of 2, the makespan is the paper's 3m + 2(p-2) for
// m = p, and on up to 8 ranks also for m = 2p and 3p.
func chimera(q Request) (*Schedule, error) {
	best := chimeraGroups(q)
	if q.Micros <= q.Ranks {
		return best, nil
	}
	c := Costs{Times: Times{F: q.Costs.F, B: q.Costs.B + q.Costs.W}, Comm: q.Costs.Comm}
	if c.CheckTimes() != nil {
		c.Times = Times{F: 1, B: 2}
	}
	least := runtime(best, c)
	for _, warm := range []float64{1.5, 1.875, 2} {
		for _, limit := range []int{q.Ranks, q.Ranks + 2} {
			s := Empty(q, Arrows, best.Home...)
			if y := (Policy{Warm: warm, Forward: true, Deep: true}); y.Order(s, c, float64(limit), nil) {
				s.joinBackwards()
				if t := runtime(s, c); t < least {
					best, least = s, t
				}
			}
		}
	}
	return best, nil
}

// runtime returns the makespan, or +Inf if the ranks deadlock.
func runtime(s *Schedule, c Costs) float64 {
	m := s.Clock(c)
	if !m.Run() {
		return math.Inf(1)
	}
	return m.Score(false).First
}

// joinBackwards turns every input gradient into a full backward and removes the weight
// gradients.
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

// chimeraGroups returns the order for passes that all take one time slot. In each
// direction, stage s runs forward i in slot s+2i and backward i in slot 2p-1-s+2i. For
// even p no two passes of a rank share a slot. Groups of p micro-batches, half in each
// direction, start 2p slots apart, which leaves no slot empty between them.
func chimeraGroups(q Request) *Schedule {
	p, half := q.Ranks, q.Micros/2
	down, up := Opposite(p)
	s := Empty(q, Arrows, down, up)
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

// queue yields the units of one pass of one stage in order of micro-batches.
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

// bitpipe runs two V-shaped pipelines in opposite directions (Wu et al. 2024, BitPipe,
// arXiv 2410.19367); each rank holds two stages of each. A rank's order merges its list
// of forwards with its list of backwards. Both consist of groups of p micro-batches, half
// in each direction.
func bitpipe(q Request) (*Schedule, error) {
	down := Vee(q.Ranks)
	s := Empty(q, Arrows, down, Reversed(down))
	return s.fill(func(r int) []Unit {
		forwards, backwards := bitpipeLists(q.Ranks, q.Micros, r)
		return bitpipeMerge(q.Ranks, r, forwards, backwards)
	}), nil
}

// bitpipeLists returns all forwards and all backwards of rank r, each in order of
// execution.
func bitpipeLists(p, m, r int) (forwards, backwards []Unit) {
	u, own, q := p/2, 0, p/2-r // own: the direction whose first stage is the nearer one; q: ranks to the middle
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

// bitpipeMerge interleaves the two lists. A group has 2p forwards on a rank: w in the
// warm-up, then rem paired with backwards. Between two groups, the backwards that remain
// of the first alternate with the forwards of the second, in blocks and in pairs.
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

// bitpipeRounds refuses an incomplete group of p micro-batches.
func bitpipeRounds(q Request) *UsageError {
	if q.Micros%q.Ranks != 0 {
		return &UsageError{Why: "in bitpipe, the number of micro-batches must be a multiple of the ranks",
			Hint: "take " + plural((q.Micros/q.Ranks+1)*q.Ranks, "micro-batch")}
	}
	return nil
}

// dualpipe overlaps a forward of one direction with a full backward of the other
// (DeepSeek-AI 2024, DeepSeek-V3, 3.2.1).
func dualpipe(q Request) (*Schedule, error) {
	p := q.Ranks
	down, up := Opposite(p)
	s := Empty(q, Primes, down, up)
	return s.fill(func(r int) []Unit {
		near := 0 // the direction that enters at the end nearer to rank r
		if r >= p/2 {
			near = 1
		}
		phases := [2]Unit{{Dir: near, Stage: min(r, p-1-r)}, {Dir: 1 - near, Stage: max(r, p-1-r)}}
		return dualpipeOrder(p, q.Micros/2, min(r, p-1-r), phases)
	}), nil
}

// dualpipeV is dualpipe cut in half (Sea AI Lab 2025, "DualPipe could be better without
// the Dual"): p ranks run what the first p of 2p ranks would, with the two chunks of a V
// instead of two directions, so that one copy of the weights suffices.
func dualpipeV(q Request) (*Schedule, error) {
	p := q.Ranks
	s := Empty(q, Primes, Vee(p))
	return s.fill(func(r int) []Unit {
		return dualpipeOrder(2*p, q.Micros, r, [2]Unit{{Stage: r}, {Stage: 2*p - 1 - r}})
	}), nil
}

// dualpipeOrder returns the order of the rank at distance q from the nearer end of p
// ranks, for half micro-batches per phase. phases are the rank's stages: phase 0 of the
// direction that enters at the nearer end, phase 1 of the other. The eight loops are the
// eight steps of DeepSeek's DualPipe code.
func dualpipeOrder(p, half, q int, phases [2]Unit) []Unit {
	d := &dualpipeRank{phases: phases}
	far := p/2 - 1 - q // ranks between this one and the middle
	for range 2 * far {
		d.forward(0)
	}
	for range q + 1 {
		d.forward(0)
		d.forward(1)
	}
	for range far {
		d.backward(1, Bx)
		d.weight()
		d.forward(1)
	}
	for i := range half - p + q + 1 {
		if i == 0 && far == 0 { // as in the source: apart, the forward need not wait for the backward's input
			d.forward(0)
			d.backward(1, B)
		} else {
			d.joined(0, 1)
		}
		d.joined(1, 0)
	}
	for range far {
		d.backward(1, B)
		d.joined(1, 0)
	}
	for i := range 2 * (q + 1) { // the second half only input gradients, for which others wait
		pass := B
		if i >= q+1 {
			pass = Bx
		}
		d.backward(1-i%2, pass)
	}
	for range far {
		d.weight()
		d.backward(0, Bx)
	}
	for range q + 1 {
		d.weight()
	}
	return d.order
}

// dualpipeRank is the order of a rank under construction.
type dualpipeRank struct {
	phases              [2]Unit
	forwards, backwards [2]int // run, by phase
	order               []Unit
	pending             []Unit // deferred weight gradients
}

func (d *dualpipeRank) forward(phase int) {
	u := d.phases[phase]
	u.Pass, u.Micro = F, d.forwards[phase]
	d.forwards[phase]++
	d.order = append(d.order, u)
}

func (d *dualpipeRank) backward(phase int, pass Pass) {
	u := d.phases[phase]
	u.Pass, u.Micro = pass, d.backwards[phase]
	d.backwards[phase]++
	d.order = append(d.order, u)
	if pass == Bx {
		u.Pass = W
		d.pending = append(d.pending, u)
	}
}

// weight runs the oldest deferred weight gradient.
func (d *dualpipeRank) weight() {
	d.order, d.pending = append(d.order, d.pending[0]), d.pending[1:]
}

// joined overlaps a forward of phase f with a full backward of phase b.
func (d *dualpipeRank) joined(f, b int) {
	d.forward(f)
	d.backward(b, B)
	d.order[len(d.order)-1].Joined = true
}

// twoPerRank refuses fewer micro-batches than dualpipeOrder's warm-up takes.
func twoPerRank(q Request) *UsageError {
	if q.Micros < 2*q.Ranks {
		return &UsageError{Why: "this schedule needs at least two micro-batches per rank",
			Hint: "take " + plural(2*q.Ranks, "micro-batch") + " or more"}
	}
	return nil
}
