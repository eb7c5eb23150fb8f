package schedule

import "math"

// ZB-V (Qi et al. 2024, arXiv 2401.10241, 6, and 2405.15362): two chunks per rank, placed
// in a V. Rank 0 holds the first stage and the last, so the first backward starts early
// there, and all ranks hold the same number of activations.
//
// Approach: a greedy list scheduler in rounds, like zb-auto. Stages 0 to p-1 are called
// lower, the others upper. In the warm-up the first micro-batch passes all stages; where
// a rank waits for it to return, it and the ranks before it run further lower forwards, as
// far as memory allows. Then in each of 2m rounds every rank runs one backward (of its
// lower stage if the input is there, else of the upper one) and one forward (of its upper
// stage if the input is there, else of the lower one), and weight gradients in gaps.
//
// Example (p=4, m=8, all times 1): no bubble with 8 chunk activations, as many as 1F1B
// holds on rank 0. With a lower cap the rounds get stuck; then the fastest repeating
// pattern is taken (pattern.go).
//
// Weakness: choices are final. For m < 2p or uneven times a small bubble remains.

// vStage is the progress of a stage. Stages r and 2p-1-r are on rank r.
type vStage struct {
	endF, endB []float64
	weights    int // weight gradients run
}

// vRank is the state of a rank.
type vRank struct {
	clock   float64
	memory  float64 // chunk activations
	bubble  float64 // time waited since the first forward
	pending []Unit  // weight gradients that may run, in the order of their input gradients
	order   []Unit
}

// vPlan is one greedy construction.
type vPlan struct {
	stages       []vStage
	ranks        []vRank
	p, m         int
	c            Costs
	cap          float64
	fillF, fillB bool      // before a forward, or an upper backward: run a weight gradient also in a short gap, see gap
	known        []float64 // by rank: bubble of an earlier construction, so that the worst rank is known from the start
	failed       bool      // the construction got stuck
}

// zeroBubbleV returns the construction with the smallest bubble under the cap, which is 2p
// chunks by default, the memory of 1F1B.
func zeroBubbleV(q Request) (*Schedule, error) {
	limit := q.Cap
	if limit == 0 {
		limit = 2 * float64(q.Ranks)
	}
	if err := q.Costs.check(2*q.Ranks, 1); err != nil {
		return nil, err
	}
	var best *vPlan
	for flags := range 4 {
		var known []float64
		for range 2 {
			v := &vPlan{stages: make([]vStage, 2*q.Ranks), ranks: make([]vRank, q.Ranks), p: q.Ranks, m: q.Micros,
				c: q.Costs, cap: limit, fillF: flags&1 != 0, fillB: flags&2 != 0, known: known}
			if v.build(); v.failed {
				break
			}
			known = make([]float64, q.Ranks)
			for r := range known {
				known[r] = v.ranks[r].bubble
			}
			if best == nil || v.worst() < best.worst() {
				best = v
			}
		}
	}
	s := Empty(q, Cases, Vee(q.Ranks))
	if best != nil {
		return s.fill(func(r int) []Unit { return best.ranks[r].order }), nil
	}
	if !fastestPattern(s, q.Costs, limit) {
		return nil, &UsageError{"zb-v", "no order of this kind was found within the memory cap",
			"raise the memory cap; by default it is twice the number of ranks"}
	}
	return s, nil
}

// fastestPattern fills s with the repeating pattern of the shortest span under the cap, of
// those tried within the effort (V-Half, V-Min and others). It returns false if none keeps
// the cap.
func fastestPattern(s *Schedule, c Costs, limit float64) bool {
	const effort = 1 << 20 // units planned for all patterns together
	var best [][]Unit
	var least Score
	list := Patterns(true)
	for _, y := range list[:min(len(list), 1+effort/(3*s.slots()))] {
		try := *s
		try.Orders = make([][]Unit, s.Ranks)
		if !y.Order(&try, c, limit) {
			continue
		}
		m := try.Clock(c)
		if m.Run() && (best == nil || m.Score(true).Less(least)) {
			best, least = try.Orders, m.Score(true)
		}
	}
	s.Orders = best
	return best != nil
}

// build runs the warm-up and all rounds. It sets failed if the construction gets stuck.
func (v *vPlan) build() {
	v.descend()
	v.level()
	for round := 0; round < 2*v.m && !v.failed; round++ {
		v.backwards()
		v.forwards()
	}
	for r := range v.ranks {
		for len(v.ranks[r].pending) > 0 {
			v.weight(r)
		}
	}
	for s := range v.stages {
		v.failed = v.failed || v.stages[s].weights < v.m
	}
}

// descend passes the first micro-batch through all stages. While rank r waits for it to
// return, ranks 0 to r each run another lower forward, as often as there is time and rank
// r has 2+2r chunks of memory left.
func (v *vPlan) descend() {
	for r := range v.p {
		v.put(F, r)
	}
	for r := v.p - 1; r >= 0; r-- {
		up := 2*v.p - 1 - r
		arrival, _ := v.input(F, up)
		for v.ranks[r].memory+float64(2+2*r) <= v.cap+1e-9 && v.ranks[r].clock+v.c.Of(Unit{Stage: r}) <= arrival && len(v.stages[r].endF) < v.m &&
			r < v.p-1 {
			for j := range r + 1 {
				v.put(F, j)
			}
		}
		v.put(F, up)
	}
}

// level gives each rank as many forwards as the one before it, alternating between lower
// and upper stages.
func (v *vPlan) level() {
	takeUpper := false
	for r := 1; r < v.p; r++ {
		for stalled := 0; stalled < 2 && !v.failed; {
			above, here := v.count(r-1), v.count(r)
			if here[0]+here[1] >= above[0]+above[1] && (here[1] > above[1] || above[1] >= v.m) {
				break
			}
			stalled++
			for j := r; j < v.p; j++ {
				stage := j
				if takeUpper {
					stage = v.p + j - r // from the last rank back to r
				}
				if _, ok := v.input(F, stage); ok && len(v.stages[stage].endF) < v.m {
					v.put(F, stage)
					stalled = 0
				}
			}
			takeUpper = !takeUpper
		}
	}
}

// count returns how many lower and upper forwards rank r has run.
func (v *vPlan) count(r int) [2]int {
	return [2]int{len(v.stages[r].endF), len(v.stages[2*v.p-1-r].endF)}
}

// backwards runs one input gradient per rank: those of lower stages from the last rank to
// the first, then those of upper stages from the first rank to the last.
func (v *vPlan) backwards() {
	isLower := make([]bool, v.p)
	for r := range v.p {
		low, up := len(v.stages[r].endB), len(v.stages[2*v.p-1-r].endB)
		_, ready := v.input(Bx, r)
		isLower[r] = low < up && (ready || up == v.m)
	}
	for r := v.p - 1; r >= 0; r-- {
		if isLower[r] {
			v.gap(r, Bx, r, true)
			v.put(Bx, r)
		}
	}
	for r := range v.p {
		if up := 2*v.p - 1 - r; !isLower[r] && len(v.stages[up].endB) < v.m {
			v.gap(r, Bx, up, v.fillB)
			v.put(Bx, up)
		}
	}
}

// forwards runs one forward per rank, of the upper stage if its input is there.
func (v *vPlan) forwards() {
	for r := range v.p {
		n := v.count(r)
		stage := r
		if _, ready := v.input(F, 2*v.p-1-r); n[1] < n[0] && ready {
			stage = 2*v.p - 1 - r
		}
		if _, ready := v.input(F, stage); !ready || len(v.stages[stage].endF) == v.m {
			continue
		}
		for v.ranks[r].memory+1 > v.cap+1e-9 && !v.failed {
			v.weight(r)
		}
		v.gap(r, F, stage, v.fillF)
		v.put(F, stage)
	}
}

// input returns when the input of the next forward or input gradient of a stage arrives,
// or false if it is not computed.
func (v *vPlan) input(pass Pass, stage int) (float64, bool) {
	last := 2*v.p - 1
	var list []float64
	i, from := len(v.stages[stage].endF), stage-1
	switch {
	case pass == F && stage == 0:
		return 0, true
	case pass == F:
		list = v.stages[from].endF
	case stage == last:
		i, from, list = len(v.stages[stage].endB), stage, v.stages[stage].endF
	default:
		i, from, list = len(v.stages[stage].endB), stage+1, v.stages[stage+1].endB
	}
	if i >= len(list) {
		return 0, false
	}
	if v.home(from) != v.home(stage) {
		return list[i] + v.c.Comm, true
	}
	return list[i], true
}

func (v *vPlan) home(stage int) int { return min(stage, 2*v.p-1-stage) }

// gap runs weight gradients that end before the stage's input arrives. If more, it runs
// another one if waiting would make r the rank with the largest bubble.
func (v *vPlan) gap(r int, pass Pass, stage int, more bool) {
	ready, ok := v.input(pass, stage)
	k := &v.ranks[r]
	if !ok || pass != F && stage == 2*v.p-1 {
		return
	}
	for len(k.pending) > 0 && ready >= k.clock+v.c.Of(k.pending[0]) {
		v.weight(r)
	}
	if len(k.pending) > 0 && more && ready-k.clock > v.slack(r) {
		v.weight(r)
	}
}

// worst returns the largest bubble of a rank.
func (v *vPlan) worst() float64 {
	worst := 0.0
	for r := range v.ranks {
		worst = math.Max(worst, v.ranks[r].bubble)
	}
	return worst
}

// slack returns how much longer rank r may wait without becoming the rank with the largest
// bubble.
func (v *vPlan) slack(r int) float64 {
	worst := v.worst()
	for _, b := range v.known {
		worst = math.Max(worst, b-v.known[r])
	}
	return worst - v.ranks[r].bubble
}

// put runs the next forward or input gradient of a stage, or sets failed if that is
// impossible.
func (v *vPlan) put(pass Pass, stage int) {
	s, k := &v.stages[stage], &v.ranks[v.home(stage)]
	ready, ok := v.input(pass, stage)
	done, memory := &s.endF, 1.0
	if pass == Bx {
		done, memory = &s.endB, v.c.WeightMemory-1
		ok = ok && len(s.endB) < len(s.endF)
	}
	if !ok || len(*done) == v.m || k.memory+memory > v.cap+1e-9 {
		v.failed = true
		return
	}
	if len(k.order) > 0 {
		k.bubble += math.Max(0, ready-k.clock)
	}
	u := Unit{Pass: pass, Stage: stage, Micro: len(*done)}
	k.clock = math.Max(k.clock, ready) + v.c.Of(u)
	k.memory += memory
	*done = append(*done, k.clock)
	k.order = append(k.order, u)
	if pass == Bx {
		u.Pass = W
		k.pending = append(k.pending, u)
	}
}

// weight runs the oldest pending weight gradient of rank r, or sets failed if there is
// none.
func (v *vPlan) weight(r int) {
	k := &v.ranks[r]
	if len(k.pending) == 0 {
		v.failed = true
		return
	}
	u := k.pending[0]
	k.pending = k.pending[1:]
	v.stages[u.Stage].weights++
	k.clock += v.c.Of(u)
	k.memory -= v.c.WeightMemory
	k.order = append(k.order, u)
}
