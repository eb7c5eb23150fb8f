package search

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
)

// Approach. A pipeline is a depth, a micro-batch, a schedule, a division of the
// segments into stages and a placement. All combinations are enumerated and
// estimated. The schedule's clock with each stage's times (package schedule) gives
// a lower bound; recomputation, updates and reductions added to it give an
// estimate. In the order of their estimates, tasks are lowered and simulated with
// all ranks on one clock, as long as their bounds are below the best time so far:
//
//	depth x micro-batch x schedule --Simulate--> bound
//	      x placement              --Balance---> stages, estimate
//	best estimates first           --Lower-----> recomputation per rank
//	                               -SpansFirst-> seconds
//
// Memory constrains each rank separately: the least recomputation that fits is
// found per rank, since later stages hold fewer micro-batches.
//
// Example: four L4 on PCIe and a model of 1.5e9 parameters. Reducing its gradients
// takes longer than the step, while a pipeline sends 4 MB per micro-batch. On
// NVLink it is the reverse: no bubble beats a short one.
//
// Known weakness: for schedules with several stages per rank, stages are divided
// without regard to memory. The number of instructions lowered is bounded (see
// effort).

// variant is a schedule to try, with its parameters.
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

// sliced are the variants that cut sequences. They need one sequence per
// micro-batch, fp32 and little recomputation. They sum over tokens in another order
// than the plain run, so they are tried only if the user asks for them.
var sliced = []variant{{"seq1f1b", 1, 2, 0}, {"seq1f1b", 1, 4, 0}, {"seq1f1b", 1, 8, 0}}

// variants returns the variants that the pins allow.
func (p *Pins) variants() []variant {
	switch {
	case p.Slices > 1:
		return []variant{{"seq1f1b", 1, p.Slices, 0}}
	case p.Schedule == "seq1f1b":
		return sliced
	}
	return variants
}

// canSlice reports whether micro-batches of b sequences can be cut as a variant
// requires, see plan.Plan.Validate.
func (p *problem) canSlice(b int, v variant) bool {
	return b == 1 && p.graph.DType == graph.F32 && v.slices <= p.graph.Seq/graph.SliceUnit(p.graph.Seq) && len(p.recomputations(v)) > 0 && len(p.req.Pins.Activations) == 0
}

// effort bounds the instructions lowered for pipelines per rank of the machine, mostEffort their total. slack
// bounds the factor by which estimates are too high. After patience failures in a row the search stops.
const (
	effort     = 100_000
	mostEffort = 1_000_000
	slack      = 1.15
	patience   = 10
)

// inPipelines returns how many more instructions of pipelines may be lowered, once there is a plan.
func inPipelines(p *problem) int {
	if positions(p) == 1 || p.req.Pins.Pipeline == 1 || p.req.Sketch {
		return 0
	}
	return max(min(effort*p.ranks, mostEffort)-p.told.pipelined, 0)
}

// shape is a pipeline without a placement.
type shape struct {
	variant
	p               *problem
	depth, replicas int
	b, micros       int
	costs           *costs
	home            [][]int
}

// task is a pipeline to lower, with its placement and stages.
type task struct {
	*shape
	residency
	first           []int              // per stage its first segment, and the end
	sequence        *schedule.Schedule // set if the order depends on times
	level           []int              // per rank: guessed recomputation, an index into levels
	bound, estimate float64
	leads           bool // it is lowered whatever effort is left
}

// planPipelines finds pipelines. A sketch has one only where nothing else fits, or ranks share sequences: then the best of each depth is tried.
func planPipelines(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	of := fastestPlan
	if p.req.Sketch && p.graph.Parts() == 1 {
		if len(found) > 0 {
			return found, nil
		}
		of = anyPlan
	}
	return searchPipelines(ctx, p, found, of)
}

// positions returns how many positions there are in all pipelines, each of as many ranks as compute with a sequence.
func positions(p *problem) int { return p.ranks / p.graph.PerSequence() }

// joinsSharers reports whether ranks that share sequences may be in a pipeline: if one is asked for, or if they can exchange heads and it may
// only be faster, not what fits: estimates know neither what they exchange nor what they hold of it.
func joinsSharers(p *problem, found shortlist) bool {
	pins := &p.req.Pins
	return pins.pipelined() || len(found) > 0 && pins.Exchange != plan.ExchangeKeys && graph.ExchangesHeads(p.graph, pins.KVParts)
}

// searchPipelines tries pipelines of all depths. Estimates of memory are sometimes too low: if none of the tasks that they leave fits, the
// tasks that they ruled out are tried too.
func searchPipelines(ctx context.Context, p *problem, found shortlist, of aim) (shortlist, error) {
	pins := &p.req.Pins
	if positions(p) == 1 || p.graph.Parts() > 1 && !joinsSharers(p, found) || pins.Pipeline == 1 || pins.Group > 1 || p.graph.Model.Shares > 0 || model.Crosses(p.graph.Model) || pins.Policy != "" {
		return found, nil
	}
	known := newEstimates(p)
	for _, every := range []bool{false, true} {
		tasks, err := tasksOf(ctx, known, found, every)
		if err != nil {
			return nil, err
		}
		if found, err = tryTasks(ctx, p, found, tasks, of); err != nil || len(found) > 0 {
			return found, err
		}
	}
	return found, nil
}

// tasksOf lists the tasks of pipelines of all depths that may beat the best plan so far and, unless every one is
// asked for, are not dominated; those that seem fastest come first.
func tasksOf(ctx context.Context, known *estimates, found shortlist, every bool) (tasks []*task, err error) {
	p, pin := known.p, known.p.req.Pins.Pipeline
	for depth := 2; depth <= min(positions(p), len(p.graph.Segments)); depth++ {
		if positions(p)%depth != 0 || pin != 0 && pin != depth {
			continue
		}
		p.told.say(fmt.Sprintf("%s: pipelines of %d ranks", planning, depth), found)
		for _, sh := range shapesOf(known, depth, found) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			tasks = append(tasks, sh.tasks(found, every)...)
		}
	}
	slices.SortStableFunc(tasks, func(a, b *task) int { return cmp.Compare(a.estimate, b.estimate) })
	return leadersFirst(tasks), nil
}

// leadersFirst returns tasks that are sorted by their estimates, those first that are the best of their depth and near the best
// of all: estimates do not see all that depths differ in, such as what crosses a network, and of one depth alone there may be
// more than can be lowered.
func leadersFirst(tasks []*task) []*task {
	const near = 1.05
	depths := map[int]bool{}
	var leaders, rest []*task
	for _, t := range tasks {
		if t.leads = !depths[t.depth] && t.estimate <= near*tasks[0].estimate; t.leads {
			leaders = append(leaders, t)
		} else {
			rest = append(rest, t)
		}
		depths[t.depth] = true
	}
	return append(leaders, rest...)
}

// tryTasks lowers tasks until the effort is spent or the next ones are unlikely to win.
func tryTasks(ctx context.Context, p *problem, found shortlist, tasks []*task, of aim) (shortlist, error) {
	fruitless := 0
	for _, t := range tasks {
		if len(found) > 0 && (of != fastestPlan || inPipelines(p) == 0 && !t.leads || fruitless > patience || p.told.cut()) {
			break
		}
		if found.beats(t.bound) || found.beats(t.estimate/slack) {
			continue
		}
		p.told.begin(0, inPipelines(p))
		p.told.say(planning+": "+t.label(), found)
		fruitless++
		c, err := t.lowerRoomiest(ctx, of)
		if err != nil {
			return nil, err
		}
		if c == nil {
			continue
		}
		c.task = t
		if found = found.add(c); c == found[0] {
			fruitless = 0
		}
	}
	return found, nil
}

// shapesOf lists the pipelines of a depth.
func shapesOf(known *estimates, depth int, found shortlist) (list []*shape) {
	p, pin := known.p, known.p.req.Pins.MicroBatch
	replicas := positions(p) / depth
	batch := p.req.GlobalBatch / p.graph.PerSequence() / replicas
	if batch*p.graph.PerSequence()*replicas != p.req.GlobalBatch {
		return nil
	}
	for b := batch; b >= 1; b-- {
		tokens := b * p.graph.Seq
		if batch%b != 0 || b > 1 && tokens > 1<<16 || !p.graph.CutsAt(tokens) || pin > 0 && b != pin {
			continue
		}
		c := known.forPipeline(b, depth)
		if math.IsInf(c.message, 0) {
			return nil // no link joins the ranks
		}
		var work float64
		for _, t := range c.segments {
			work += t.F + t.B + t.W
		}
		if found.beats(work * float64(batch/b) / float64(depth)) {
			continue
		}
		for _, v := range p.req.Pins.variantsOf(depth) {
			if v.slices > 1 && !p.canSlice(b, v) {
				continue
			}
			list = append(list, &shape{variant: v, p: p, depth: depth, replicas: replicas, b: b, micros: batch / b, costs: c})
		}
	}
	return list
}

// variantsOf lists the schedules to try at a depth, within the pins.
func (p *Pins) variantsOf(depth int) (list []variant) {
	for _, v := range p.variants() {
		if p.Schedule != "" && p.Schedule != v.name || p.Slices > 0 && p.Slices != v.slices {
			continue
		}
		if n := len(p.Stages); n > 0 && v.chunks*depth != n {
			continue
		}
		list = append(list, v)
	}
	return list
}

// PossiblePipeline returns why no pipeline satisfies the user's decisions, whatever
// else is chosen; nil if one may.
func PossiblePipeline(p *Pins, ranks, batch int) error {
	var first error
	for depth := 2; depth <= ranks; depth++ {
		replicas := ranks / max(depth, 1)
		if ranks%depth != 0 || p.Pipeline != 0 && p.Pipeline != depth || batch%replicas != 0 {
			continue
		}
		micros := batch / replicas / max(p.MicroBatch, 1)
		for _, v := range p.variants() {
			chunks, parts := v.chunks, v.slices
			if len(p.Stages) > 0 {
				chunks = len(p.Stages) / depth
			}
			if p.Schedule != "" && p.Schedule != v.name || p.Slices > 0 && p.Slices != v.slices || len(p.Stages)%depth != 0 {
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
		return fmt.Errorf("no pipeline on %d ranks satisfies the decisions of `plan`; hint: give each rank the same number of stages, and make global_batch %d a multiple of the number of replicas", ranks, batch)
	}
	return first
}

// label describes a task to the user.
func (t *task) label() string {
	name := t.name
	if t.slices > 1 {
		name += fmt.Sprintf(" in %d slices", t.slices)
	}
	if t.chunks > 1 && t.name != "zb-v" && t.name != "bitpipe" && t.name != "dualpipev" {
		name += fmt.Sprintf(" with %d stages per rank", t.chunks)
	}
	ranks := fmt.Sprintf("pipeline of %d ranks", t.depth)
	if t.replicas > 1 {
		ranks = fmt.Sprintf("%d pipelines of %d ranks", t.replicas, t.depth)
	}
	return fmt.Sprintf("%s, %s, %s, micro-batch %d x %d", ranks, name, t.residency.label, t.b, t.micros)
}

// lowerRoomiest lowers and simulates a task in the style that uses most memory and fits; nil if none
// does. Where the first does not fit, the last one says whether others are worth asking.
func (t *task) lowerRoomiest(ctx context.Context, of aim) (*Candidate, error) {
	styles := t.p.styles(of, t.b, t.residency)
	c, err := t.lower(ctx, styles[0])
	if c == nil && err == nil && len(styles) > 1 {
		last := len(styles) - 1
		if c, err = t.lower(ctx, styles[last]); c != nil {
			for _, st := range styles[1:last] {
				if better, err := t.lower(ctx, st); better != nil || err != nil {
					c = better
					break
				}
			}
		}
	}
	if c == nil || err != nil {
		return nil, err
	}
	return c, c.simulate(t.p.machine)
}

// onMachine returns the same task on another machine.
func (t *task) onMachine(m *Machine) *task {
	p, sh, again := *t.p, *t.shape, *t
	again.shape, sh.p, p.machine = &sh, &p, m
	return &again
}

// lower finds the least recomputation that fits for each rank; nil if nothing fits on some rank.
func (t *task) lower(ctx context.Context, st style) (*Candidate, error) {
	pl, err := t.plan(st)
	if err != nil {
		return nil, err
	}
	t.p.told.evaluated++
	c := &Candidate{Plan: pl, Label: t.label(), Kind: fmt.Sprintf("%s on %d ranks", t.name, t.depth), Fits: true}
	for place := range t.depth {
		list, err := t.lowerPlace(ctx, pl, place)
		if err != nil || list == nil {
			return nil, err
		}
		c.Programs = append(c.Programs, list...)
	}
	if t.p.machine.Shared > 0 && c.bytesTogether() > t.p.machine.Shared {
		return nil, nil
	}
	hash := pl.Hash() // each rank was lowered before the later ranks' recomputation was decided
	for _, p := range c.Programs {
		p.PlanHash = hash
	}
	c.Program = c.Programs[0]
	return c, nil
}

// plan returns the plan of a task without recomputation.
func (t *task) plan(st style) (*plan.Plan, error) {
	pl := plan.Plain(t.p.graph, t.b)
	pl.Ranks, pl.MicroBatches, pl.HeadRows, pl.FeedRows, pl.State = t.p.ranks, t.micros, st.headRows, st.feedRows, t.p.req.State
	pl.Optimizer = t.p.req.Optimizer
	pl.Chunks = plan.Layout(t.p.graph, st.chunk)
	pl.Pipeline = &plan.Pipeline{Schedule: t.name, Ranks: t.depth, Stages: t.first[:len(t.first)-1], Slices: t.slices}
	if t.sequence != nil {
		pl.Pipeline.Order = t.sequence.Text()
	}
	t.p.req.setExchange(pl, choice{heads: true}, t.p.machine.Capacity[device.DeviceTier])
	ordered, err := pl.Ordered(t.p.graph)
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
	t.p.streamUpdates(pl, 0)
	if t.p.req.Pins.Slots > 0 {
		pl.Slots = t.p.req.Pins.Slots
	}
	t.p.setCache(pl, st)
	return pl, nil
}

// lowerPlace lowers the ranks at a place of the pipeline: one, or as many as share matrices or sequences, whose programs are alike. nil if
// nothing fits.
func (t *task) lowerPlace(ctx context.Context, pl *plan.Plan, place int) (list []*program.Program, err error) {
	first, err := t.lowerLeast(ctx, pl, place)
	if err != nil || first == nil {
		return nil, err
	}
	list, opt := []*program.Program{first}, t.p.req.Options
	opt.Capacity, opt.Reject = t.p.machine.Capacity, true
	for len(list) < t.p.graph.PerSequence() {
		opt.Rank = first.Rank + len(list)
		p, err := lower.Lower(ctx, t.p.graph, pl, opt)
		if err != nil || !p.Fits() {
			return nil, err
		}
		t.p.told.pipelined += len(p.Instrs)
		list = append(list, p)
	}
	return list, nil
}

// lowerLeast finds the least recomputation with which the first rank at a place fits, starting at the
// guess, and stores it in the plan. Other places' layers do not affect it.
func (t *task) lowerLeast(ctx context.Context, pl *plan.Plan, place int) (best *program.Program, err error) {
	var layers []int
	for _, r := range t.ranges(place) {
		for l := max(r[0], 1); l < min(r[1], t.p.graph.Head()); l++ {
			layers = append(layers, l-1)
		}
	}
	slices.Sort(layers)
	layers = slices.Compact(layers) // both directions have the same policy
	list := ladderOf(len(layers), t.p.recomputations(t.variant))
	opt := t.p.req.Options
	opt.Capacity, opt.Reject, opt.Rank = t.p.machine.Capacity, true, place*t.p.graph.PerSequence()
	set := func(keep []plan.Retention) {
		for i, l := range layers {
			pl.Activations[l] = keep[i]
		}
		pl.Activations = t.p.req.Pins.activations(pl.Activations)
	}
	probe := func(at int) (*program.Program, error) {
		set(list[at])
		p, err := lower.Lower(ctx, t.p.graph, pl, opt)
		if err == nil {
			t.p.told.pipelined += len(p.Instrs)
		}
		return p, err
	}
	fitting, most := -1, len(list)-1
	bad, good := -1, len(list) // good fits if it is in the list
	step, at := 1, min(t.level[place], most)
	for good-bad > 1 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p, err := probe(at)
		if err != nil {
			return nil, err
		}
		if p.Fits() {
			best, good, fitting = p, at, at
			at -= step
		} else {
			if bad < 0 && good > most && at < most { // does any?
				if last, err := probe(most); err != nil || !last.Fits() {
					return nil, err
				}
			}
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
