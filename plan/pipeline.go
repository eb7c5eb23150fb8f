package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
)

// Approach. A pipeline is a depth, a micro-batch, a schedule, a division of the
// segments over stages and a residency. All are enumerated and estimated: the
// schedule's own clock with each stage's times (package schedule) gives a bound,
// and with what has to be made again, updated and reduced an estimate. In the
// order of the estimates they are lowered, and simulated with all their ranks
// on one clock, as long as bounds are below the best time found:
//
//	depth x micro-batch x schedule --Simulate--> bound
//	      x residency              --Balance---> stages, estimate
//	best estimates first           --Lower-----> recomputation per rank
//	                               --RunFirst--> seconds
//
// Memory is a matter of each rank by itself: the least recomputation that fits
// is found rank by rank, since later stages hold fewer micro-batches.
//
// Example: four L4 on PCIe with a model of 1.5e9 parameters: reducing its
// gradients takes longer than the step, while a pipeline sends 4 MB per
// micro-batch. On NVLink it is the other way round: no bubble beats a short one.
//
// Known weakness: stages of schedules with several per rank are divided without
// looking at memory, and only so many instructions are lowered (see effort).

// variant is a schedule that is tried.
type variant struct {
	name           string
	chunks, slices int
	limit          float64 // of activations, in micro-batches per rank: zb-auto
}

// variants are the schedules that can win, and gpipe for comparison.
var variants = []variant{
	{"1f1b", 1, 1, 0}, {"interleaved", 2, 1, 0}, {"interleaved", 4, 1, 0}, {"breadth-first", 2, 1, 0}, {"breadth-first", 4, 1, 0},
	{"zb-h1", 1, 1, 0}, {"zb-h2", 1, 1, 0}, {"zb-auto", 1, 1, 1}, {"zb-auto", 1, 1, 2}, {"zb-v", 2, 1, 0},
	{"chimera", 1, 1, 0}, {"bitpipe", 2, 1, 0}, {"dualpipe", 1, 1, 0}, {"dualpipev", 2, 1, 0}, {"gpipe", 1, 1, 0},
}

// effort is how many instructions are lowered for pipelines, per rank of the
// machine, mostEffort for all, and slack by how much estimates are taken to be too high at most.
// What comes to nothing patience times in a row is given up.
const (
	effort     = 100_000
	mostEffort = 1_000_000
	slack      = 1.15
	patience   = 10
)

// shape is a pipeline before it is decided what lives where.
type shape struct {
	variant
	depth, replicas int
	b, micros       int
	costs           *costs
	request         schedule.Request
	home            [][]int
}

// task is a pipeline to be lowered.
type task struct {
	*shape
	residency
	first           []int // per stage its first segment, and the end
	schedule        *schedule.Schedule
	level           []int // per rank: a guess of what is made again
	bound, estimate float64
}

// pipelines tries pipelines of all depths.
func (s *search) pipelines() error {
	pins := &s.req.Pins
	if s.ranks == 1 || pins.Pipeline == 1 || pins.Group > 1 || pins.Policy != "" {
		return nil
	}
	var tasks []*task
	for depth := 2; depth <= min(s.ranks, len(s.graph.Segments)); depth++ {
		if s.ranks%depth != 0 || pins.Pipeline != 0 && pins.Pipeline != depth {
			continue
		}
		s.say(fmt.Sprintf("pipelines of %d ranks", depth))
		for _, sh := range s.shapes(depth) {
			if err := s.ctx.Err(); err != nil {
				return err
			}
			tasks = append(tasks, s.tasks(sh)...)
		}
	}
	slices.SortStableFunc(tasks, func(a, b *task) int { return cmp.Compare(a.estimate, b.estimate) })
	fruitless := 0
	for _, t := range tasks {
		if len(s.found) > 0 && (s.any || s.lowered > min(effort*s.ranks, mostEffort) || fruitless > patience) {
			break
		}
		if s.beaten(t.bound) || s.beaten(t.estimate/slack) {
			continue
		}
		s.say(t.label())
		fruitless++
		if c, err := s.pursue(t); err != nil {
			return err
		} else if c != nil && c == s.fastest() {
			fruitless = 0
		}
	}
	return nil
}

// beaten reports that something faster has been found.
func (s *search) beaten(bound float64) bool { return len(s.found) > 0 && bound >= s.found[0].Seconds() }

// fastest that has been found, or nil.
func (s *search) fastest() *Candidate {
	if len(s.found) == 0 {
		return nil
	}
	return s.found[0]
}

// shapes lists the pipelines of a depth.
func (s *search) shapes(depth int) (list []*shape) {
	pins := &s.req.Pins
	replicas := s.ranks / depth
	batch := s.req.GlobalBatch / replicas
	if batch*replicas != s.req.GlobalBatch {
		return nil
	}
	for b := batch; b >= 1; b-- {
		tokens := b * s.graph.Seq
		odd := s.graph.DType == graph.BF16 && tokens%2 != 0
		if batch%b != 0 || b > 1 && tokens > 1<<16 || odd || pins.MicroBatch > 0 && b != pins.MicroBatch {
			continue
		}
		c := s.costs(b)
		if math.IsInf(c.message, 0) {
			return nil // nothing joins the ranks
		}
		var work float64
		for _, t := range c.segments {
			work += t.F + t.B + t.W
		}
		if s.beaten(work * float64(batch/b) / float64(depth)) {
			continue
		}
		for _, v := range s.variants(depth) {
			list = append(list, &shape{variant: v, depth: depth, replicas: replicas, b: b, micros: batch / b, costs: c})
		}
	}
	return list
}

// variants lists the schedules to try, as pinned.
func (s *search) variants(depth int) []variant {
	pins := &s.req.Pins
	var list []variant
	for _, v := range variants {
		if pins.Schedule != "" && pins.Schedule != v.name || pins.Slices > 0 && pins.Slices != v.slices {
			continue
		}
		if n := len(pins.Stages); n > 0 && v.chunks*depth != n {
			continue
		}
		list = append(list, v)
	}
	return list
}

// PossiblePipeline says why there is no pipeline with these decisions, whatever
// else is decided.
func PossiblePipeline(p *Pins, ranks, batch int) error {
	var first error
	for depth := 2; depth <= ranks; depth++ {
		replicas := ranks / max(depth, 1)
		if ranks%depth != 0 || p.Pipeline != 0 && p.Pipeline != depth || batch%replicas != 0 {
			continue
		}
		micros := batch / replicas / max(p.MicroBatch, 1)
		for _, v := range variants {
			chunks, parts := v.chunks, max(p.Slices, v.slices)
			if len(p.Stages) > 0 {
				chunks = len(p.Stages) / depth
			}
			if p.Schedule != "" && p.Schedule != v.name || len(p.Stages)%depth != 0 {
				continue
			}
			for m := micros; m >= 1; m-- { // fewer where schedules need multiples
				if micros%m != 0 || p.MicroBatch > 0 && m != micros {
					continue
				}
				_, err := schedule.Generate(v.name, schedule.Request{Ranks: depth, Micros: m, Chunks: chunks, Slices: parts, Costs: schedule.DefaultCosts()})
				if err == nil {
					return nil
				}
				if first == nil {
					first = err
				}
			}
		}
	}
	if first == nil {
		return fmt.Errorf("no pipeline of %d ranks has these stages and batch; hint: as many stages on each rank, global_batch %d a multiple of the replicas", ranks, batch)
	}
	return first
}

// tasks divides a shape's segments for every residency that may fit.
func (s *search) tasks(sh *shape) (list []*task) {
	stages := sh.depth * sh.chunks
	if stages > len(s.graph.Segments) {
		return nil
	}
	sh.request = schedule.Request{Ranks: sh.depth, Micros: sh.micros, Chunks: sh.chunks, Slices: sh.slices, Cap: sh.limit * float64(sh.depth)}
	first := s.req.Pins.Stages
	if first == nil {
		split, err := schedule.Balance(sh.total(), stages, sh.micros)
		if err != nil {
			return nil
		}
		first = append([]int{0}, split.Ends[:stages-1]...)
	}
	first = append(slices.Clone(first), len(s.graph.Segments))
	sched, line := sh.simulate(first, nil)
	if line == nil || s.beaten(line.Makespan) {
		return nil // the schedule cannot be made of these numbers
	}
	if s.req.Pins.Stages == nil && sh.chunks > 1 {
		first, sched, line = sh.polish(first, sched, line)
	}
	inMemory, roomy := false, false
	for _, r := range residenciesOf(sh.replicas) {
		far := r.state != device.DeviceTier || program.ShardLevel(r.shard) > program.ShardLevel("state")
		if roomy && far || inMemory && r.state == device.DiskTier && s.req.Pins.State == nil || !s.req.Pins.allow(r) {
			continue
		}
		t := &task{shape: sh, residency: r, first: first, schedule: sched}
		if !s.divide(t, line) {
			continue
		}
		inMemory = true
		roomy = roomy || r.state == device.DeviceTier && !slices.ContainsFunc(t.level, func(l int) bool { return l > 0 })
		list = append(list, t)
	}
	return list
}

// total is the time of each segment for one micro-batch.
func (sh *shape) total() (list []float64) {
	for _, t := range sh.costs.segments {
		list = append(list, t.F+t.B+t.W)
	}
	return list
}

// simulate makes the schedule and its clock with stages of these segments;
// again is what each does again in a backward pass. Nothing comes back if there
// is no such schedule.
func (sh *shape) simulate(first []int, again []float64) (*schedule.Schedule, *schedule.Timeline) {
	c := schedule.Costs{Comm: sh.costs.message, WeightMemory: 0.5}
	for k := range len(first) - 1 {
		var sum schedule.Times
		for _, t := range sh.costs.segments[first[k]:first[k+1]] {
			sum.F, sum.B, sum.W = sum.F+t.F, sum.B+t.B, sum.W+t.W
		}
		if again != nil {
			sum.B += again[k]
		}
		c.Stages = append(c.Stages, sum)
		c.Times = schedule.Times{F: c.F + sum.F, B: c.B + sum.B, W: c.W + sum.W}
	}
	q := sh.request
	q.Costs = c
	s, err := schedule.Generate(sh.name, q)
	if err != nil {
		return nil, nil
	}
	sh.home = s.Home
	line, err := s.Simulate(c)
	if err != nil {
		return nil, nil
	}
	return s, line
}

// polish moves boundaries by one segment as long as the schedule gets shorter:
// where ranks have several stages, their sums count.
func (sh *shape) polish(first []int, s *schedule.Schedule, line *schedule.Timeline) ([]int, *schedule.Schedule, *schedule.Timeline) {
	const most = 1 << 18 // units that are simulated
	units := 3 * len(first) * sh.micros
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
				left--
				if s2, l2 := sh.simulate(moved, nil); l2 != nil && l2.Makespan < line.Makespan*(1-1e-9) {
					first, s, line, better = moved, s2, l2, true
				}
			}
		}
	}
	return first, s, line
}

// divide cuts the segments into stages for a residency, as far as estimates go,
// and guesses what has to be made again. line is the clock of stages without
// regard to memory. It reports whether the task may fit.
func (s *search) divide(t *task, line *schedule.Timeline) bool {
	stages := t.depth * t.chunks
	if s.req.Pins.Stages == nil && t.chunks == 1 && len(t.schedule.Home) == 1 {
		split, err := schedule.BalanceOptions(len(s.graph.Segments), stages, t.micros, func(stage, first, end int) []schedule.Option {
			need, layers := s.held(t, [][2]int{{first, end}})
			level := s.level(t, need, layers, line.Peaks[stage])
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
		t.first = append(append([]int{0}, split.Ends[:stages-1]...), len(s.graph.Segments))
		if t.schedule, line = t.simulate(t.first, nil); line == nil {
			return false
		}
	}
	t.bound = line.Makespan
	again := make([]float64, stages)
	var joint, updates float64
	for rank := range t.depth {
		need, layers := s.held(t, t.ranges(rank))
		level := s.level(t, need, layers, line.Peaks[rank]/float64(t.chunks))
		if level < 0 {
			return false
		}
		t.level = append(t.level, level)
		for _, home := range t.home {
			for k, r := range home {
				if r == rank {
					again[k] = t.costs.repeat(layers, level) * float64(t.layersIn(s.graph, k)) / float64(max(layers, 1))
				}
			}
		}
		sums, update := s.finish(t, rank)
		joint, updates = max(joint, sums), max(updates, update)
	}
	_, line = t.simulate(t.first, again)
	t.estimate = max(line.Makespan, joint) + updates // sums hide behind other work, more or less
	return true
}

// ranges are the segments that a rank holds, all directions.
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

// parameters counts the elements of parameters of ranges of segments, each once:
// those that are trained, and the frozen ones.
func (s *search) parameters(ranges [][2]int) (trained, frozen int64) {
	seen := make([]bool, len(s.graph.Params))
	for _, r := range ranges {
		for _, seg := range s.graph.Segments[r[0]:r[1]] {
			for _, p := range seg.Params {
				switch q := &s.graph.Params[p]; {
				case seen[p]:
				case q.Frozen:
					frozen += q.Elems()
				default:
					trained += q.Elems()
				}
				seen[p] = true
			}
		}
	}
	return trained, frozen
}

// held is the memory of the parameters of ranges of segments, and the number
// of layers there, those of both directions.
func (s *search) held(t *task, ranges [][2]int) (need [device.NumTiers]int64, layers int) {
	for _, r := range ranges {
		layers += min(r[1], s.graph.Head()) - max(r[0], 1)
	}
	trained, frozen := s.parameters(ranges)
	return s.states(trained, frozen, t.residency, t.replicas*len(t.schedule.Home)), layers
}

// level is the least that a rank's layers must make again for peak micro-batches
// to fit beside its parameters, as in levels; -1 if they never do.
func (s *search) level(t *task, need [device.NumTiers]int64, layers int, peak float64) int {
	for tier, n := range need {
		if n > s.m.Capacity[tier] {
			return -1
		}
	}
	free := float64(s.m.Capacity[device.DeviceTier] - need[device.DeviceTier])
	last := layers * (len(t.costs.kept) - 1)
	for level := 0; level <= last; level++ {
		c, k := level/max(layers, 1), level%max(layers, 1)
		bytes := int64(layers-k) * t.costs.kept[c]
		if k > 0 {
			bytes += int64(k) * t.costs.kept[c+1]
		}
		if peak*float64(bytes)/float64(len(t.schedule.Home)) <= free {
			return level
		}
	}
	return -1
}

// repeat is the time that layers spend on work done again at a level.
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

// finish estimates how long a rank is busy with sums over the ranks that share
// its parameters, or with fetching them, and with the update.
func (s *search) finish(t *task, rank int) (sums, update float64) {
	n, frozen := s.parameters(t.ranges(rank))
	group := t.replicas * len(t.schedule.Home)
	own := n
	if group > 1 && n > 0 {
		cols := int(min(n, math.MaxInt32))
		scale := float64(n) / float64(max(cols, 1))
		sums += scale * s.between(graph.AllReduce, graph.F32, 1, cols, group)
		if t.shard != "" {
			own /= int64(group)
		}
		if t.shard == "weights" || t.shard == "grads" {
			visits := float64(t.micros)
			sums += scale * visits * s.between(graph.ReduceScatter, graph.F32, 1, cols, group) / 2
		}
	}
	if t.weights == device.HostTier { // they come in at every visit
		sums += float64(t.micros) * s.updating(n+frozen, residency{state: device.HostTier}) / 4
	}
	return sums, s.updating(own, t.residency)
}

// label names a task.
func (t *task) label() string {
	name := t.name
	if t.chunks > 1 && t.name != "zb-v" && t.name != "bitpipe" && t.name != "dualpipev" {
		name += fmt.Sprintf(" with %d stages per rank", t.chunks)
	}
	ranks := fmt.Sprintf("pipeline of %d ranks", t.depth)
	if t.replicas > 1 {
		ranks = fmt.Sprintf("%d pipelines of %d ranks", t.replicas, t.depth)
	}
	return fmt.Sprintf("%s, %s, %s, micro-batch %d x %d", ranks, name, t.residency.label, t.b, t.micros)
}

// pursue lowers a task as roomily as fits; nil if it does not.
func (s *search) pursue(t *task) (*Candidate, error) {
	for _, st := range s.styles(t.b, t.residency) {
		c, err := s.fill(t, st)
		if err != nil {
			return nil, err
		}
		if c != nil {
			return c, s.keep(c)
		}
	}
	return nil, nil
}

// fill finds for each rank the least recomputation that fits; nil if there is
// a rank for which none does.
func (s *search) fill(t *task, st style) (*Candidate, error) {
	pl, err := s.piped(t, st)
	if err != nil {
		return nil, err
	}
	s.evaluated++
	c := &Candidate{Plan: pl, Label: t.label(), Kind: fmt.Sprintf("%s on %d ranks", t.name, t.depth), Fits: true}
	var together int64
	for rank := range t.depth {
		p, err := s.least(t, pl, rank)
		if err != nil || p == nil {
			return nil, err
		}
		c.Programs = append(c.Programs, p)
		together += (p.Height[device.DeviceTier] + p.Height[device.HostTier]) * int64(t.replicas)
	}
	if s.m.Shared > 0 && together > s.m.Shared {
		return nil, nil
	}
	hash := pl.Hash() // when a rank was lowered, what the next ones make again was not decided
	for _, p := range c.Programs {
		p.PlanHash = hash
	}
	c.Program = c.Programs[0]
	return c, nil
}

// piped is the plan of a task with nothing made again yet.
func (s *search) piped(t *task, st style) (*program.Plan, error) {
	pl := program.Plain(s.graph, t.b)
	pl.Ranks, pl.MicroBatches, pl.HeadRows = s.ranks, t.micros, st.headRows
	pl.Chunks = program.Layout(s.graph, st.chunk)
	pl.Pipeline = &program.Pipeline{Schedule: t.name, Ranks: t.depth, Stages: t.first[:len(t.first)-1], Slices: t.slices}
	if t.name == "zb-auto" { // its order depends on times
		pl.Pipeline.Order = t.schedule.Text()
	}
	ordered, err := pl.Ordered(s.graph)
	if err != nil {
		return nil, err
	}
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		c.Weights, c.Grads, c.State, c.Shard = t.weights, t.grads, t.state, t.shard
		if !ordered[i] {
			c.Weights, c.Grads = device.DeviceTier, device.DeviceTier
			if c.Shard != "" {
				c.Shard = "state"
			}
		}
	}
	if s.req.Pins.Slots > 0 {
		pl.Slots = s.req.Pins.Slots
	}
	s.cache(pl, st)
	return pl, nil
}

// levels lists what becomes of the activations of some layers, from least work
// to least memory: one choice after the other, and within a choice layer by
// layer from the first.
func levels(layers int, choices []program.Retention) [][]program.Retention {
	list := [][]program.Retention{slices.Repeat(choices[:1], layers)}
	for _, c := range choices[1:] {
		for l := range layers {
			next := slices.Clone(list[len(list)-1])
			next[l] = c
			list = append(list, next)
		}
	}
	return list
}

// least looks for the least that a rank's layers must make again, starting at
// the guess, and leaves it in the plan. Other ranks' layers do not matter to it.
func (s *search) least(t *task, pl *program.Plan, rank int) (best *program.Program, err error) {
	var layers []int
	for _, r := range t.ranges(rank) {
		for l := max(r[0], 1); l < min(r[1], s.graph.Head()); l++ {
			layers = append(layers, l-1)
		}
	}
	slices.Sort(layers)
	layers = slices.Compact(layers) // both directions' are kept alike
	list := levels(len(layers), s.remakes())
	opt := s.req.Options
	opt.Capacity, opt.Reject, opt.Rank = s.m.Capacity, true, rank
	set := func(keep []program.Retention) {
		for i, l := range layers {
			pl.Activations[l] = keep[i]
		}
		pl.Activations = s.req.Pins.activations(pl.Activations)
	}
	fitting := -1
	bad, good := -1, len(list) // good fits if it is in the list
	step, at := 1, min(t.level[rank], len(list)-1)
	for good-bad > 1 {
		if err := s.ctx.Err(); err != nil {
			return nil, err
		}
		set(list[at])
		p, err := program.Lower(s.ctx, s.graph, pl, opt)
		if err != nil {
			return nil, err
		}
		s.lowered += len(p.Instrs)
		if fits(p, s.m) {
			best, good, fitting = p, at, at
			at -= step
		} else {
			bad = at
			at += step
		}
		if step *= 2; bad >= 0 && good < len(list) {
			at = (bad + good) / 2
		}
		at = min(max(at, bad+1), good-1)
	}
	if fitting < 0 {
		return nil, nil
	}
	set(list[fitting])
	return best, nil
}
