package search

import (
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/schedule"
)

// How to divide segments into pipeline stages, and what that costs by estimate.
//
// Approach. There is a division for each combination of pipeline and placement,
// thousands for 64 ranks, so work is shared. The order of work is generated once
// per shape. Its clock runs once for the same stages and times, and not at all if
// the busiest rank alone takes longer than the best plan so far. Parameters are
// counted by differences of prefix sums.
//
// Example: all placements that leave room for all activations of all ranks have the
// same stages, so they share a clock.
//
// Known weakness: with several stages per rank, only single boundaries are moved.

// pacing finds the duration of a shape's order of work. The order, its clock and
// the most micro-batches that ranks hold are computed once, unless they depend on
// times.
type pacing struct {
	*shape
	order *schedule.Schedule
	clock *schedule.Clock
	peaks []float64
	known map[string]pace
}

// pace is the duration of the order of work for a division into stages. order is
// nil if none exists.
type pace struct {
	order    *schedule.Schedule
	makespan float64
	peaks    []float64
}

// tasks divides a shape's segments for every placement that may fit.
func (sh *shape) tasks(found shortlist, every bool) (list []*task) {
	p, pins := sh.p, &sh.p.req.Pins
	stages := sh.depth * sh.chunks
	if stages > len(p.graph.Segments) {
		return nil
	}
	first := pins.Stages
	if first == nil {
		split, err := schedule.Balance(sh.total(), stages, sh.micros)
		if err != nil {
			return nil
		}
		first = append([]int{0}, split.Ends[:stages-1]...)
	}
	first = append(slices.Clone(first), len(p.graph.Segments))
	pc := &pacing{shape: sh, known: map[string]pace{}}
	at := pc.of(first, nil)
	if at.order == nil || found.beats(sh.bound(at.makespan)) {
		return nil // the schedule does not exist for these numbers
	}
	if pins.Stages == nil && sh.chunks > 1 {
		first = pc.polish(first, at.makespan)
		at = pc.of(first, nil)
	}
	inMemory, roomy := false, false
	for _, r := range residenciesOf(sh.replicas) {
		far := r.state != device.DeviceTier || plan.ShardLevel(r.shard) > plan.ShardLevel("state")
		needless := roomy && far || inMemory && r.state == device.DiskTier && pins.State == nil
		if needless && !every || !pins.allow(r) {
			continue
		}
		t := &task{shape: sh, residency: r, first: first}
		if !t.divide(pc, at, found) {
			continue
		}
		inMemory = true
		roomy = roomy || r.state == device.DeviceTier && !slices.ContainsFunc(t.level, func(l int) bool { return l > 0 })
		list = append(list, t)
	}
	return list
}

// total returns the time of each segment for one micro-batch.
func (sh *shape) total() (list []float64) {
	for _, t := range sh.costs.segments {
		list = append(list, t.F+t.B+t.W)
	}
	return list
}

// times returns the times of stages that begin with the given segments, for an
// average slice of a micro-batch: later slices attend to more tokens. again is each
// stage's recomputation in a backward pass.
func (sh *shape) times(first []int, again []float64) (list []schedule.Times) {
	for k := range len(first) - 1 {
		var sum schedule.Times
		for _, t := range sh.costs.segments[first[k]:first[k+1]] {
			sum.F, sum.B, sum.W = sum.F+t.F, sum.B+t.B, sum.W+t.W
		}
		if again != nil {
			sum.B += again[k]
		}
		sum.F, sum.B, sum.W = sum.F/float64(sh.slices), sum.B/float64(sh.slices), sum.W/float64(sh.slices)
		list = append(list, sum)
	}
	return list
}

// bound returns a lower bound on a step from the schedule's makespan.
func (sh *shape) bound(makespan float64) float64 {
	if sh.slices > 1 { // slices differ in time
		return makespan / slack
	}
	return makespan
}

// timed reports whether the schedule's order depends on times, so that a plan must
// record it.
func (v *variant) timed() bool { return v.name == "zb-auto" }

// of returns the pace of stages that begin with the given segments.
func (p *pacing) of(first []int, again []float64) pace {
	if !slices.ContainsFunc(again, func(sec float64) bool { return sec > 0 }) {
		again = nil
	}
	key := fmt.Sprint(first, again)
	if at, ok := p.known[key]; ok {
		return at
	}
	at := p.run(p.times(first, again))
	p.known[key] = at
	return at
}

// run computes the makespan of an order. If there is none yet, it generates the order as lowering will or, if
// the order depends on times, with the given ones.
func (p *pacing) run(stages []schedule.Times) pace {
	if p.order == nil || p.timed() {
		c := schedule.Costs{Comm: p.costs.message, WeightMemory: 0.5, Stages: stages}
		for _, t := range stages {
			c.Times = schedule.Times{F: c.F + t.F, B: c.B + t.B, W: c.W + t.W}
		}
		q := schedule.Request{Ranks: p.depth, Micros: p.micros, Chunks: p.chunks, Slices: p.slices, Cap: p.limit * float64(p.depth), Costs: schedule.DefaultCosts()}
		if p.timed() {
			q.Costs = c
		}
		order, err := schedule.Generate(p.name, q)
		if err != nil {
			return pace{}
		}
		line, err := order.Simulate(c)
		if err != nil {
			return pace{}
		}
		p.order, p.clock, p.peaks, p.home = order, order.Clock(c), line.Peaks, order.Home
	}
	return pace{p.order, p.clock.Makespan(stages), p.peaks}
}

// least returns a lower bound on the makespan of any order: the largest sum, over
// ranks, of the arrival of the first input and the compute time.
func (p *pacing) least(stages []schedule.Times) (bound float64) {
	begin, busy := slices.Repeat([]float64{math.Inf(1)}, p.depth), make([]float64, p.depth)
	for _, home := range p.home {
		var before float64
		for k, r := range home {
			begin[r] = min(begin[r], before)
			busy[r] += (stages[k].F + stages[k].B + stages[k].W) * float64(p.micros*p.slices/len(p.home))
			before += stages[k].F
		}
	}
	for r, sec := range busy {
		bound = max(bound, begin[r]+sec)
	}
	return bound
}

// polish moves boundaries by one segment while the makespan shrinks. It is for
// ranks with several stages, whose sums matter.
func (p *pacing) polish(first []int, makespan float64) []int {
	const most = 1 << 18 // units that are simulated
	units := 3 * len(first) * p.micros
	for left, better := most/units, true; better; {
		better = false
		for k := 1; k+1 < len(first) && left > 0; k++ {
			for _, d := range []int{-1, 1} {
				at := first[k] + d
				if at <= first[k-1] || at >= first[k+1] {
					continue
				}
				moved := slices.Clone(first)
				moved[k] = at
				stages, shorter := p.times(moved, nil), makespan*(1-1e-9)
				if p.least(stages) >= shorter {
					continue
				}
				left--
				if sec := p.clock.Makespan(stages); sec < shorter {
					first, makespan, better = moved, sec, true
				}
			}
		}
	}
	return first
}

// divide cuts the segments into stages for a placement, by estimates, and guesses
// the recomputation. at is the pace of stages divided without regard to memory.
// divide reports whether the task may fit. If the task can no longer win, its
// estimate is only a bound.
func (t *task) divide(pc *pacing, at pace, found shortlist) bool {
	stages := t.depth * t.chunks
	if t.p.req.Pins.Stages == nil && t.chunks == 1 && len(t.home) == 1 {
		split, err := schedule.BalanceOptions(len(t.p.graph.Segments), stages, t.micros, func(stage, first, end int) []schedule.Option {
			need, layers := t.parameterBytes([][2]int{{first, end}})
			level := t.leastLevel(need, layers, at.peaks[stage])
			if level < 0 {
				return nil
			}
			var time float64
			for _, x := range t.costs.segments[first:end] {
				time += x.F + x.B + x.W
			}
			return []schedule.Option{{Time: time + t.costs.repeat(layers, level)}}
		})
		if err != nil {
			return false
		}
		t.first = append(append([]int{0}, split.Ends[:stages-1]...), len(t.p.graph.Segments))
		if at = pc.of(t.first, nil); at.order == nil {
			return false
		}
	}
	if t.timed() {
		t.sequence = at.order
	}
	t.bound = t.shape.bound(at.makespan)
	again := make([]float64, stages)
	var joint, updates float64
	for rank := range t.depth {
		need, layers := t.parameterBytes(t.ranges(rank))
		level := t.leastLevel(need, layers, at.peaks[rank]/float64(t.chunks))
		if level < 0 {
			return false
		}
		t.level = append(t.level, level)
		for _, home := range t.home {
			for k, r := range home {
				if r == rank {
					again[k] = t.costs.repeat(layers, level) * float64(t.layersIn(t.p.graph, k)) / float64(max(layers, 1))
				}
			}
		}
		sums, update := t.finishTimes(rank)
		joint, updates = max(joint, sums), max(updates, update)
	}
	total := func(makespan float64) float64 { return max(makespan, joint) + updates } // reductions mostly overlap other work
	if t.estimate = total(pc.least(pc.times(t.first, again))); !found.beats(t.estimate / slack) {
		t.estimate = total(pc.of(t.first, again).makespan)
	}
	return true
}

// ranges returns the segments that a rank holds, in all directions.
func (t *task) ranges(rank int) (list [][2]int) {
	for _, home := range t.home {
		for k, r := range home {
			if r == rank {
				list = append(list, [2]int{t.first[k], t.first[k+1]})
			}
		}
	}
	return list
}

func (t *task) layersIn(g *graph.Graph, stage int) int {
	return min(t.first[stage+1], g.Head()) - max(t.first[stage], 1)
}

// parameterBytes returns the bytes per tier of the parameters in ranges of segments, and the
// number of layers there, both over all directions.
func (t *task) parameterBytes(ranges [][2]int) (need [device.NumTiers]int64, layers int) {
	for _, r := range ranges {
		layers += min(r[1], t.p.graph.Head()) - max(r[0], 1)
	}
	trained, frozen := t.p.census.count(ranges)
	return t.p.leastBytes(trained, frozen, t.residency, t.replicas*len(t.home)), layers
}

// leastLevel returns the least recomputation, as an index into levels, with which peak micro-batches fit alongside a
// rank's parameters; -1 if none does.
func (t *task) leastLevel(need [device.NumTiers]int64, layers int, peak float64) int {
	for tier, n := range need {
		if n > t.p.machine.Capacity[tier] {
			return -1
		}
	}
	free := float64(t.p.machine.Capacity[device.DeviceTier] - need[device.DeviceTier])
	last := layers * (len(t.costs.kept) - 1)
	for level := 0; level <= last; level++ {
		c, k := level/max(layers, 1), level%max(layers, 1)
		bytes := int64(layers-k) * t.costs.kept[c]
		if k > 0 {
			bytes += int64(k) * t.costs.kept[c+1]
		}
		if peak*float64(bytes)/float64(len(t.home)) <= free {
			return level
		}
	}
	return -1
}

// repeat returns the recomputation time of that many layers at a level.
func (c *costs) repeat(layers, level int) float64 {
	if layers == 0 {
		return 0
	}
	k := level % layers
	sec := float64(layers-k) * c.again[level/layers]
	if k > 0 {
		sec += float64(k) * c.again[level/layers+1]
	}
	return sec
}

// group returns the ranks that share the parameters of a pipeline's rank: of each replica, one in each direction.
func (t *task) group(rank int) (ranks []int) {
	stage := slices.Index(t.home[0], rank)
	for q := range t.replicas {
		for _, home := range t.home {
			ranks = append(ranks, q*t.depth+home[stage])
		}
	}
	return ranks
}

// finishTimes estimates a rank's time for reducing or gathering the parameters that it
// shares with other ranks, and for the update.
func (t *task) finishTimes(rank int) (sums, update float64) {
	n, frozen := t.p.census.count(t.ranges(rank))
	group := t.group(rank)
	own := n
	if len(group) > 1 && n > 0 {
		cols := int(min(n, math.MaxInt32))
		scale := float64(n) / float64(max(cols, 1))
		sums += scale * t.p.prices.dealt(t.depth).collective(graph.AllReduce, cols, group)
		if t.shard != "" {
			own /= int64(len(group))
		}
		if t.shard == "weights" || t.shard == "grads" {
			visits := float64(t.micros)
			sums += scale * visits * t.p.prices.dealt(t.depth).collective(graph.ReduceScatter, cols, group) / 2
		}
	}
	if t.weights == device.HostTier { // weights are copied in at every visit
		sums += float64(t.micros) * t.p.prices.updateAll(n+frozen, residency{state: device.HostTier}) / 4
	}
	return sums, t.p.prices.updateAll(own, t.residency)
}
