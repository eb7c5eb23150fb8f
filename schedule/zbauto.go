package schedule

import "math"

// The automatic zero-bubble schedule: a greedy list scheduler for given times and a cap on
// activations (Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv 2401.10241, 3.1).
// It runs with all settings of three flags, and the best result is taken.
//
// Approach: in the warm-up, each stage runs as many forwards as fit before its first
// backward can arrive. Then in round i every stage runs at most one forward, from the
// first stage to the last, and the i-th input gradient, from the last stage to the first.
// Weight gradients run in gaps that are long enough. In a shorter gap the stage runs one
// only if waiting would make it the stage with the largest bubble.
//
// Example (p=4, m=8, all times 1): with cap 4 it is as fast as ZB-H1 (span 27), with cap 8
// it has no bubble.
// Weakness: one chunk per rank, and choices are final. A search (lab/pipeline) improves the result.

// zbState is the state of a stage, which is a rank.
type zbState struct {
	forwards, backwards, weights int // units run
	clock                        float64
	memory                       float64 // activations held, in micro-batches
	bubble                       float64 // time waited since the first forward
	endF, endB                   []float64
	order                        []Unit
}

// zbPlan is one greedy construction.
type zbPlan struct {
	stages []zbState
	m      int
	c      Costs
	cap    float64
	// early: the last forward of the warm-up must end, not only start, before the first
	// backward arrives. prio: a stage that is ahead may leave out a forward, see wanted.
	// greed: run a weight gradient in every gap, even a short one.
	early, prio, greed bool
	failed             bool // the cap cannot be kept
}

// zeroBubbleAuto returns the construction with the shortest span under the cap, which is
// 2p by default, the memory of ZB-H2.
func zeroBubbleAuto(q Request) (*Schedule, error) {
	limit := q.Cap
	if limit == 0 {
		limit = 2 * float64(q.Ranks)
	}
	if limit < 1 {
		return nil, &UsageError{"zb-auto", "a rank must hold at least one micro-batch", "raise the memory cap to 1 or more"}
	}
	if err := q.Costs.check(q.Ranks, 1); err != nil {
		return nil, err
	}
	var best *zbPlan
	for flags := range 8 {
		z := &zbPlan{stages: make([]zbState, q.Ranks), m: q.Micros, c: q.Costs, cap: limit,
			early: flags&1 != 0, prio: flags&2 != 0, greed: flags&4 != 0}
		if z.build(); !z.failed && (best == nil || z.span() < best.span()) {
			best = z
		}
	}
	if best == nil {
		return nil, &UsageError{"zb-auto", "no order was found within the memory cap", "raise the memory cap"}
	}
	s := Empty(q, Plain, Loop(q.Ranks, 1))
	return s.fill(func(r int) []Unit { return best.stages[r].order }), nil
}

// build runs the warm-up and all rounds.
func (z *zbPlan) build() {
	last := len(z.stages) - 1
	for j := range z.stages {
		z.forward(j)
	}
	for j, extra := range z.extras() {
		for range extra {
			z.room(j, 1)
			z.forward(j)
		}
	}
	for j := last; j >= 0; j-- {
		z.backward(j)
	}
	for round := 1; round < z.m && !z.failed; round++ {
		for j, want := range z.wanted() {
			if want {
				z.room(j, 1)
				z.fill(j, z.forwardReady(j))
				z.forward(j)
			}
		}
		for j := last; j >= 0; j-- {
			z.fill(j, z.backwardReady(j))
			if j == 0 && z.stages[j].forwards == z.m {
				z.flush(j)
			}
			z.backward(j)
		}
	}
	for j := range z.stages {
		z.flush(j)
	}
}

// span returns the objective: the longest time from the start of a stage's first forward
// to the end of its last weight gradient.
func (z *zbPlan) span() float64 {
	longest := 0.0
	for j := range z.stages {
		s := &z.stages[j]
		longest = math.Max(longest, s.clock-s.endF[0]+z.time(F, j))
	}
	return longest
}

// extras returns how many forwards each stage can run between its first forward and the
// arrival of its first backward.
func (z *zbPlan) extras() []int {
	last := len(z.stages) - 1
	extra := make([]int, last+1)
	back := z.stages[last].endF[0] + z.time(Bx, last) // when the next stage ends its first backward
	for j := last - 1; j >= 0; j-- {
		cost := z.stages[j].endF[0]
		for 1+extra[j] < z.m && z.stages[j].memory+float64(extra[j]+1) <= z.cap+1e-9 {
			limit := back + z.c.Comm
			if z.early && cost+z.time(F, j) > limit || !z.early && cost >= limit {
				break
			}
			extra[j]++
			cost += z.time(F, j)
		}
		back = math.Max(cost, back+z.c.Comm) + z.time(Bx, j)
	}
	for j := 1; j <= last; j++ {
		for extra[j] > 0 && extra[j] >= extra[j-1] && 1+extra[j-1] < z.m { // fewer than the stage before, unless that runs all
			extra[j]--
		}
	}
	return extra
}

// wanted returns which stages run a forward in this round: those that have one left and
// whose next stage runs one too. With prio, a stage that is at least two forwards ahead of
// the next one leaves it out if it would delay the backward, unless waiting would make it
// the stage with the largest bubble.
func (z *zbPlan) wanted() []bool {
	want := make([]bool, len(z.stages))
	next := true
	for j := len(z.stages) - 1; j >= 0; j-- {
		s := &z.stages[j]
		want[j] = next && s.forwards < z.m
		if want[j] && z.prio && j+1 < len(z.stages) && s.forwards >= z.stages[j+1].forwards+2 {
			arrival := z.stages[j+1].clock + z.time(F, j+1) + z.time(Bx, j+1) + z.c.Comm
			switch {
			case s.clock >= arrival:
				want[j] = false
			case s.clock+z.time(F, j)+z.clearing(j) <= arrival:
			default:
				want[j] = arrival-s.clock > z.worstBubble()-s.bubble
			}
		}
		next = want[j]
	}
	return want
}

// clearing returns the time of the weight gradients that must run before stage j has room
// for a forward.
func (z *zbPlan) clearing(j int) float64 {
	s := &z.stages[j]
	time, memory := 0.0, s.memory
	for pending := s.backwards - s.weights; pending > 0 && memory+1 > z.cap+1e-9; pending-- {
		memory -= z.c.WeightMemory
		time += z.time(W, j)
	}
	return time
}

// time returns the time of a pass of stage j.
func (z *zbPlan) time(pass Pass, j int) float64 { return z.c.Of(Unit{Pass: pass, Stage: j}) }

func (z *zbPlan) worstBubble() float64 {
	worst := 0.0
	for j := range z.stages {
		worst = math.Max(worst, z.stages[j].bubble)
	}
	return worst
}

func (z *zbPlan) forwardReady(j int) float64 {
	if j == 0 {
		return 0
	}
	return z.stages[j-1].endF[z.stages[j].forwards] + z.c.Comm
}

func (z *zbPlan) backwardReady(j int) float64 {
	if j == len(z.stages)-1 {
		return 0
	}
	return z.stages[j+1].endB[z.stages[j].backwards] + z.c.Comm
}

// fill runs the weight gradients of stage j that end before ready. If a gap remains, it
// runs one more with greed, or if waiting would make j the stage with the largest bubble.
func (z *zbPlan) fill(j int, ready float64) {
	s := &z.stages[j]
	for s.backwards > s.weights && s.clock+z.time(W, j) <= ready {
		z.weight(j)
	}
	if s.backwards > s.weights && s.clock < ready && (z.greed || ready-s.clock > z.worstBubble()-s.bubble) {
		z.weight(j)
	}
}

// room runs weight gradients until need more activations fit. It sets failed if they never
// do.
func (z *zbPlan) room(j int, need float64) {
	s := &z.stages[j]
	for s.memory+need > z.cap+1e-9 {
		if s.backwards == s.weights || z.c.WeightMemory == 0 {
			z.failed = true
			return
		}
		z.weight(j)
	}
}

func (z *zbPlan) flush(j int) {
	for z.stages[j].backwards > z.stages[j].weights {
		z.weight(j)
	}
}

func (z *zbPlan) forward(j int) {
	s := &z.stages[j]
	ready := z.forwardReady(j)
	if s.forwards > 0 {
		s.bubble += math.Max(0, ready-s.clock)
	}
	s.clock = math.Max(s.clock, ready) + z.time(F, j)
	s.endF = append(s.endF, s.clock)
	s.order = append(s.order, Unit{Pass: F, Stage: j, Micro: s.forwards})
	s.forwards++
	s.memory++
}

func (z *zbPlan) backward(j int) {
	s := &z.stages[j]
	ready := z.backwardReady(j)
	s.bubble += math.Max(0, ready-s.clock)
	s.clock = math.Max(s.clock, ready) + z.time(Bx, j)
	s.endB = append(s.endB, s.clock)
	s.order = append(s.order, Unit{Pass: Bx, Stage: j, Micro: s.backwards})
	s.backwards++
	s.memory -= 1 - z.c.WeightMemory
}

func (z *zbPlan) weight(j int) {
	s := &z.stages[j]
	s.clock += z.time(W, j)
	s.order = append(s.order, Unit{Pass: W, Stage: j, Micro: s.weights})
	s.weights++
	s.memory -= z.c.WeightMemory
}
