// Package pipeline studies pipeline schedules: it searches for better orders than the named ones, proves some of them
// optimal, compares all on the same work, cuts sequences into slices of equal cost, and draws. Plans choose among the
// schedules of package schedule; nothing here runs in a training.
//
// Example: Search(Goal{Request: schedule.Request{Ranks: 4, Micros: 8, Costs: schedule.DefaultCosts()}}) has a makespan
// of 25, where 1F1B takes 33.
//
// Weakness: stages and messages are numbers; memory other than activations is not modelled.
package pipeline

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"

	"github.com/athanor-llm/athanor/schedule"
)

// Search finds an order for given times, messages, memory and parameter buffers.
//
// Approach: start from all named schedules with the same numbers of chunks and slices,
// and from greedy orders and repeating patterns on all placements with these numbers.
// Drop those that exceed the memory cap, improve the best few by local search, and if the
// schedule is small, run an exact search. Last, search for orders that are as fast but
// hold less. The result is never worse than the best named schedule, since that is one of
// the starting points, and optimal if it equals the lower bound.
//
// Example (p=4, m=8, all times 1): 1F1B takes 33, ZB-H2 27, Search 25 with two copies of
// the weights, 27 with one.
// Weakness: large schedules get few moves, so the result is often the best named one.

// Goal says what to search for and with how much effort.
type Goal struct {
	schedule.Request        // Chunks and Slices default to 1; Cap 0 means no limit
	Span             bool   // minimise the longest span, for steps that follow each other rank by rank, instead of the makespan
	Copies           int    // copies of the weights allowed: 1, or 2 (the default), which permits both directions
	Effort           int    // units to execute, for local search and about as many for starting points; 0: 4 million
	Nodes            int    // nodes of the exact search per placement; 0: none, or 200,000 if the schedule is small
	Seed             uint64 // of the random choices; equal seeds give equal results
}

// Found is the result of Search.
type Found struct {
	*schedule.Schedule
	Timeline   *schedule.Timeline
	LowerBound float64 // of the objective, over all orders on all allowed placements
	Optimal    bool    // the objective equals LowerBound, so it is proven minimal
}

// candidate is a schedule with its score.
type candidate struct {
	s     *schedule.Schedule
	score schedule.Score
}

const starts = 6 // candidates that local search improves

// Search returns the best order found. It returns a *UsageError for an impossible request,
// or if no order was found that keeps the cap.
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
		return nil, &schedule.UsageError{What: "search with " + g.Request.Shape(), Why: fmt.Sprintf("no order was found within the memory cap of %g chunk activations", g.Cap),
			Hint: "raise the memory cap; every rank must hold one micro-batch in each of its stages"}
	}
	found := &Found{LowerBound: g.bound()}
	best := g.improved(all, found.LowerBound, rng)
	if best.score.First > found.LowerBound*(1+1e-9) {
		if better, bound := g.prove(best); bound > 0 {
			best, found.LowerBound = better, bound
		}
	}
	best = g.lean(best, rng)
	found.Schedule = best.s
	found.Schedule.Name = "search"
	found.Optimal = best.score.First <= found.LowerBound*(1+1e-9)
	found.Timeline, err = found.Simulate(g.Costs)
	return found, err
}

// maxSearched bounds the units of orders that are searched for. At this size a search
// takes a minute.
const maxSearched = 1 << 18

// complete fills in the defaults and checks the goal.
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
	if err := g.Request.Check(); err != nil {
		return g, err
	}
	if g.size() > maxSearched {
		return g, &schedule.UsageError{What: g.Request.Shape(), Why: fmt.Sprintf("the order would have %d units, but a search takes at most %d", g.size(), maxSearched), Hint: "take fewer ranks or micro-batches, or name a schedule"}
	}
	if g.Costs.Stages != nil && len(g.Costs.Stages) != g.Ranks*g.Chunks {
		return g, &schedule.UsageError{What: fmt.Sprintf("%d stage times", len(g.Costs.Stages)), Why: fmt.Sprintf("the schedule has %d stages", g.Ranks*g.Chunks), Hint: "give one per stage"}
	}
	return g, g.Costs.CheckTimes()
}

// size returns the number of units on all ranks if all backwards are split.
func (g Goal) size() int { return 3 * g.Ranks * g.Chunks * g.Micros * g.Slices }

// named returns all named schedules with the goal's numbers of chunks and slices that keep
// the cap. Those that depend on a cap are also tried with smaller ones.
func (g Goal) named() []candidate {
	var all []candidate
	try := func(gen schedule.Generator, q schedule.Request) {
		if gen.Chunks[0] > g.Chunks || gen.Chunks[1] < g.Chunks || gen.Slices[1] < g.Slices || gen.Mirror && g.Copies < 2 {
			return
		}
		if s, err := gen.Make(q); err == nil {
			if sc, ok := g.rate(s); ok {
				all = append(all, candidate{s, sc})
			}
		}
	}
	for _, gen := range schedule.Catalogue() {
		q := g.Request
		if math.IsInf(q.Cap, 1) {
			q.Cap = 0
		}
		try(gen, q)
		if gen.Name == "zb-auto" || gen.Name == "zb-v" {
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

// rate returns the score of a schedule, or false if it cannot run or exceeds the cap.
func (g Goal) rate(s *schedule.Schedule) (schedule.Score, bool) {
	if g.Costs.Buffers == 1 && s.Overlaps() || s.CheckCap(g.Costs, g.Cap) != nil {
		return schedule.Score{}, false
	}
	m := s.Clock(g.Costs)
	if !m.Run() {
		return schedule.Score{}, false
	}
	return m.Score(g.Span), true
}

// placements returns the placements that the goal allows, as schedules without units.
func (g Goal) placements() []*schedule.Schedule {
	list := []*schedule.Schedule{schedule.Empty(g.Request, schedule.Plain, schedule.Loop(g.Ranks, g.Chunks))}
	both := g.Copies > 1 && g.Ranks%2 == 0 && g.Micros%2 == 0
	if g.Chunks == 2 && g.Ranks > 1 {
		list = append(list, schedule.Empty(g.Request, schedule.Plain, schedule.Vee(g.Ranks)))
		if both {
			list = append(list, schedule.Empty(g.Request, schedule.Arrows, schedule.Vee(g.Ranks), schedule.Reversed(schedule.Vee(g.Ranks))))
		}
	}
	if g.Chunks == 1 && both {
		down, up := schedule.Opposite(g.Ranks)
		list = append(list, schedule.Empty(g.Request, schedule.Arrows, down, up))
	}
	return list
}

// greedy returns list schedules that keep the cap, on all placements: for all policies,
// then random ones, as far as the effort goes.
func (g Goal) greedy(rng *rand.Rand) []candidate {
	var all []candidate
	budget := g.Effort
	try := func(place *schedule.Schedule, y schedule.Policy, rng *rand.Rand) {
		s := *place
		s.Orders = make([][]schedule.Unit, g.Ranks)
		budget -= 4 * g.size()
		if !y.Order(&s, g.Costs, g.Cap, rng) {
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
				try(place, varied(list[rng.IntN(len(list))], rng), rng)
			}
		}
	}
	return all
}

// patterned returns repeating patterns that keep the cap, on all placements, in random
// order, as far as half of the effort goes for each placement.
func (g Goal) patterned(rng *rand.Rand) []candidate {
	var all []candidate
	budget := g.Effort
	for _, place := range g.placements() {
		list := schedule.Patterns(g.Chunks > 1)
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		share := budget / 2
		for _, y := range list {
			if share -= 2 * g.size(); share < 0 {
				break
			}
			s := *place
			s.Orders = make([][]schedule.Unit, g.Ranks)
			if y.Order(&s, g.Costs, g.Cap) {
				if sc, ok := g.rate(&s); ok {
					all = append(all, candidate{&s, sc})
				}
			}
		}
	}
	return all
}

// improved runs local search from the best few candidates and returns the best of all. It
// stops when the objective reaches target.
func (g Goal) improved(all []candidate, target float64, rng *rand.Rand) candidate {
	sortCandidates(all)
	all = distinct(all)
	best := all[0]
	for i := range min(starts, len(all)) {
		c := all[i]
		c.s = splitBackwards(c.s)
		v := &improver{s: c.s, c: g.Costs, clock: c.s.Clock(g.Costs), span: g.Span, rng: rng}
		if !math.IsInf(g.Cap, 1) {
			v.cap = g.Cap
		}
		if _, ok := v.evaluate(); !ok {
			continue
		}
		if c.score = v.improve(g.Effort/starts, target); c.score.Less(best.score) {
			best = c
		}
		if best.score.First <= target*(1+1e-9) {
			break
		}
	}
	return best
}

// lean searches for an order that is as fast as best but holds less, by bisection of the
// cap between best's peak and the least possible. Large schedules are returned as they
// are.
func (g Goal) lean(best candidate, rng *rand.Rand) candidate {
	if g.size() > g.Effort/32 {
		return best
	}
	g.Effort /= 8
	least := float64(g.Chunks)
	for range 6 {
		t := best.s.Clock(g.Costs)
		if !t.Run() {
			return best
		}
		peak := t.Timeline().Peak()
		if peak-least < .5 {
			break
		}
		g.Cap = (least + peak) / 2
		all := append(g.greedy(rng), g.patterned(rng)...)
		sortCandidates(all)
		if len(all) > 0 && all[0].score.First <= best.score.First*(1+1e-9) {
			best = all[0]
		} else {
			least = g.Cap
		}
	}
	return best
}

// splitBackwards returns a copy of s in which all backwards outside of overlapped pairs are split, so
// that local search can move the halves apart. The copy takes no longer.
func splitBackwards(s *schedule.Schedule) *schedule.Schedule {
	c := *s
	c.Orders = make([][]schedule.Unit, len(s.Orders))
	for r, order := range s.Orders {
		for _, u := range order {
			if u.Pass != schedule.B || u.Joined {
				c.Orders[r] = append(c.Orders[r], u)
				continue
			}
			u.Pass = schedule.Bx
			c.Orders[r] = append(c.Orders[r], u)
			u.Pass = schedule.W
			c.Orders[r] = append(c.Orders[r], u)
		}
	}
	if c.Notation == schedule.Cases {
		c.Notation = schedule.Plain
	}
	return &c
}

// policies returns those that Search tries first.
func policies() []schedule.Policy {
	var list []schedule.Policy
	for _, warm := range []float64{1, 1.5, 2, 3, math.Inf(1)} {
		for _, patience := range []float64{0, .5, 1} {
			for _, deep := range []bool{true, false} {
				list = append(list, schedule.Policy{Warm: warm, Patience: patience, Deep: deep})
			}
			list = append(list, schedule.Policy{Warm: warm, Patience: patience, Deep: true, Forward: true})
		}
	}
	return list
}

// varied returns y with a warm-up near y's, random patience and some noise.
func varied(y schedule.Policy, rng *rand.Rand) schedule.Policy {
	y.Warm *= .7 + .6*rng.Float64()
	y.Patience = rng.Float64()
	y.Noise = .3 * rng.Float64()
	return y
}

// sortCandidates sorts by score, the best first, and is stable.
func sortCandidates(all []candidate) {
	sort.SliceStable(all, func(i, j int) bool { return all[i].score.Less(all[j].score) })
}

// distinct drops candidates of equal score: usually they are the same order, found twice.
func distinct(sorted []candidate) []candidate {
	var kept []candidate
	for _, c := range sorted {
		if len(kept) == 0 || kept[len(kept)-1].score.Less(c.score) {
			kept = append(kept, c)
		}
	}
	return kept
}
