package schedule

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
)

// Search finds an order for given times, communication, memory and parameter buffers.
//
// Approach: start from all named schedules of the same grain (chunks and slices) and from greedy list schedules on all
// placements of that grain, drop what breaks the memory cap, improve the best few by local search, and for small
// schedules close the case by exact search; then look for an order as fast that holds less. The result is never worse than the best named schedule, because that is one
// of the starting points; it is optimal where the lower bound says so.
//
// Example: p=4, m=8, all times 1: 1F1B takes 33, ZB-H2 27, the order found here 26 with two copies of the weights.
// Weakness: large schedules get few moves, so there it is often the best named one.

// Goal is what is searched and how hard.
type Goal struct {
	Request        // Chunks and Slices default to 1; Cap 0 means no limit
	Span    bool   // minimise the longest span (steps that follow each other rank by rank) instead of the makespan
	Copies  int    // weight copies allowed: 1, or 2 (default) which allows both directions
	Effort  int    // units to execute in local search; 0: 4 million
	Nodes   int    // nodes of the exact search, per placement; 0: none, unless the schedule is small
	Seed    uint64 // of the random choices; equal seeds give equal results
}

// Found is the result of Search.
type Found struct {
	*Schedule
	Timeline   *Timeline
	LowerBound float64 // no order on any placement allowed is faster than this
	Optimal    bool    // proved: the objective equals LowerBound
}

// candidate is an order with its score.
type candidate struct {
	s     *Schedule
	score score
}

const starts = 6 // orders that local search improves

// Search returns the best order found, or a *UsageError if nothing keeps the cap.
func Search(g Goal) (*Found, error) {
	g, err := g.complete()
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(g.Seed, 0x9e3779b97f4a7c15))
	all := g.named()
	all = append(all, g.greedy(rng)...)
	all = append(all, g.patterned(rng)...)
	if len(all) == 0 {
		return nil, &UsageError{"search with " + describe(g.Request), fmt.Sprintf("no order keeps %g chunk activations", g.Cap),
			"raise the memory cap; every rank must hold one micro-batch in each of its stages"}
	}
	found := &Found{LowerBound: g.bound()}
	best := g.improved(all, found.LowerBound, rng)
	if best.score.first > found.LowerBound*(1+1e-9) {
		if better, bound := g.prove(best); bound > 0 {
			best, found.LowerBound = better, bound
		}
	}
	best = g.lean(best, rng)
	found.Schedule = best.s
	found.Schedule.Name = "search"
	found.Optimal = best.score.first <= found.LowerBound*(1+1e-9)
	found.Timeline, err = found.Simulate(g.Costs)
	return found, err
}

// maxSearched bounds the units of an order that is searched for: a minute's work.
const maxSearched = 1 << 18

// complete fills in defaults and checks.
func (g Goal) complete() (Goal, error) {
	g.Chunks, g.Slices, g.DepthFirst = cmp.Or(g.Chunks, 1), cmp.Or(g.Slices, 1), cmp.Or(g.DepthFirst, 1)
	if g.Copies == 0 {
		g.Copies = 2
	}
	if g.Effort == 0 {
		g.Effort = 4 << 20
	}
	if g.Cap == 0 {
		g.Cap = math.Inf(1)
	}
	if err := checkShape(g.Request); err != nil {
		return g, err
	}
	if g.size() > maxSearched {
		return g, &UsageError{describe(g.Request), fmt.Sprintf("an order of %d units, a search takes at most %d", g.size(), maxSearched), "take fewer ranks or micro-batches, or a schedule by its name"}
	}
	if g.Costs.Stages != nil && len(g.Costs.Stages) != g.Ranks*g.Chunks {
		return g, &UsageError{fmt.Sprintf("%d stage times", len(g.Costs.Stages)), fmt.Sprintf("there are %d stages", g.Ranks*g.Chunks), "give one per stage"}
	}
	return g, g.Costs.checkTimes()
}

// size is the number of units of one order over all ranks, backwards split.
func (g Goal) size() int { return 3 * g.Ranks * g.Chunks * g.Micros * g.Slices }

// named makes all named schedules of the same grain that keep the cap. The zero-bubble ones take what the cap leaves.
func (g Goal) named() []candidate {
	var all []candidate
	try := func(gen generator, q Request) {
		if gen.chunks[0] > g.Chunks || gen.chunks[1] < g.Chunks || gen.slices[1] < g.Slices || gen.mirror && g.Copies < 2 {
			return
		}
		if s, err := gen.make(q); err == nil {
			if sc, ok := g.rate(s); ok {
				all = append(all, candidate{s, sc})
			}
		}
	}
	for _, gen := range catalogue() {
		q := g.Request
		if math.IsInf(q.Cap, 1) {
			q.Cap = 0
		}
		try(gen, q)
		if gen.name == "zb-auto" || gen.name == "zb-v" {
			for _, per := range []float64{1, 1.5, 2, 3} {
				if limit := per * float64(g.Ranks*g.Chunks); limit < g.Cap {
					q.Cap = limit
					try(gen, q)
				}
			}
		}
	}
	return all
}

// rate runs a schedule; false if it cannot run or breaks the cap.
func (g Goal) rate(s *Schedule) (score, bool) {
	if g.Costs.Buffers == 1 && s.overlaps() || s.CheckCap(g.Costs, g.Cap) != nil {
		return score{}, false
	}
	m := newMachine(s, g.Costs)
	if !m.run() {
		return score{}, false
	}
	return m.score(g.Span), true
}

// placements are the ways to put the stages on the ranks that the goal allows, as empty schedules.
func (g Goal) placements() []*Schedule {
	list := []*Schedule{empty(g.Request, Plain, loop(g.Ranks, g.Chunks))}
	both := g.Copies > 1 && g.Ranks%2 == 0 && g.Micros%2 == 0
	if g.Chunks == 2 && g.Ranks > 1 {
		list = append(list, empty(g.Request, Plain, vee(g.Ranks)))
		if both {
			list = append(list, empty(g.Request, Arrows, vee(g.Ranks), reversed(vee(g.Ranks))))
		}
	}
	if g.Chunks == 1 && both {
		down, up := opposite(g.Ranks)
		list = append(list, empty(g.Request, Arrows, down, up))
	}
	return list
}

// greedy makes list schedules on all placements; fewer for large schedules.
func (g Goal) greedy(rng *rand.Rand) []candidate {
	var all []candidate
	budget := g.Effort
	try := func(place *Schedule, y policy, rng *rand.Rand) {
		s := *place
		s.Orders = make([][]Unit, g.Ranks)
		budget -= 4 * g.size()
		if !greedyOrder(&s, g.Costs, g.Cap, y, rng) {
			return
		}
		if sc, ok := g.rate(&s); ok {
			all = append(all, candidate{&s, sc})
		}
	}
	for _, y := range policies() {
		for _, place := range g.placements() {
			if budget > 0 {
				try(place, y, nil)
			}
		}
	}
	for range 40 {
		for _, place := range g.placements() {
			if budget > 0 {
				list := policies()
				try(place, list[rng.IntN(len(list))].random(rng), rng)
			}
		}
	}
	return all
}

// patterned makes repeating patterns on all placements, in random order as far as a share of the effort goes.
func (g Goal) patterned(rng *rand.Rand) []candidate {
	var all []candidate
	budget := g.Effort
	for _, place := range g.placements() {
		list := patterns(g.Chunks > 1)
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		share := budget / 2
		for _, y := range list {
			if share -= 2 * g.size(); share < 0 {
				break
			}
			s := *place
			s.Orders = make([][]Unit, g.Ranks)
			if y.order(&s, g.Costs, g.Cap) {
				if sc, ok := g.rate(&s); ok {
					all = append(all, candidate{&s, sc})
				}
			}
		}
	}
	return all
}

// improved runs local search from the best few candidates and returns the best of all.
func (g Goal) improved(all []candidate, target float64, rng *rand.Rand) candidate {
	sortCandidates(all)
	all = distinct(all)
	best := all[0]
	for i := range min(starts, len(all)) {
		c := all[i]
		c.s = c.s.split()
		v := &improver{m: newMachine(c.s, g.Costs), span: g.Span, rng: rng}
		if !math.IsInf(g.Cap, 1) {
			v.cap = g.Cap
		}
		if _, ok := v.evaluate(); !ok {
			continue
		}
		if c.score = v.improve(g.Effort/starts, target); c.score.less(best.score) {
			best = c
		}
		if best.score.first <= target*(1+1e-9) {
			break
		}
	}
	return best
}

// lean looks for an order that is as fast as the best one but holds less, by halving the cap between what the best one
// holds and the least possible. Large schedules are left as they are.
func (g Goal) lean(best candidate, rng *rand.Rand) candidate {
	if g.size() > g.Effort/32 {
		return best
	}
	g.Effort /= 8
	least := float64(g.Chunks)
	for range 6 {
		t := newMachine(best.s, g.Costs)
		if !t.run() {
			return best
		}
		peak := t.timeline().Peak()
		if peak-least < .5 {
			break
		}
		g.Cap = (least + peak) / 2
		all := append(g.greedy(rng), g.patterned(rng)...)
		sortCandidates(all)
		if len(all) > 0 && all[0].score.first <= best.score.first*(1+1e-9) {
			best = all[0]
		} else {
			least = g.Cap
		}
	}
	return best
}

// split is a copy in which every backward that is not part of an overlapped pair is split into its halves, which is what
// local search needs to move them apart. It runs in the same time or less.
func (s *Schedule) split() *Schedule {
	c := *s
	c.Orders = make([][]Unit, len(s.Orders))
	for r, order := range s.Orders {
		for _, u := range order {
			if u.Pass != B || u.Joined {
				c.Orders[r] = append(c.Orders[r], u)
				continue
			}
			u.Pass = Bx
			c.Orders[r] = append(c.Orders[r], u)
			u.Pass = W
			c.Orders[r] = append(c.Orders[r], u)
		}
	}
	if c.Notation == Cases {
		c.Notation = Plain
	}
	return &c
}

// sortCandidates puts the best first; ties stay in the order in which they were tried.
func sortCandidates(all []candidate) {
	sort.SliceStable(all, func(i, j int) bool { return all[i].score.less(all[j].score) })
}

// distinct drops candidates of equal score, which are mostly the same order found twice.
func distinct(sorted []candidate) []candidate {
	var kept []candidate
	for _, c := range sorted {
		if len(kept) == 0 || kept[len(kept)-1].score.less(c.score) {
			kept = append(kept, c)
		}
	}
	return kept
}
