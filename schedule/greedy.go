package schedule

import (
	"math"
	"math/rand/v2"
)

// Greedy list scheduling on any placement: whenever a rank can start a unit, a policy
// picks which. So there is an order for any times and placement, those that no named
// schedule was made for too.
//
// Approach: each rank chooses between the next forward and backward of each of its stages
// and its oldest weight gradient: the one of highest priority among those that can start
// within the policy's patience. Of these choices the earliest runs, and so on. A forward
// must leave room for one unit of every later stage of its rank, so that the
// micro-batches in flight can always return.
//
// Weakness: choices are final. A local search can revise them, as lab/pipeline does.

// A Policy decides between units that could run.
type Policy struct {
	Warm     float64 // in-flight forwards allowed on a rank, per stage from the rank's first one to the last of the model
	Forward  bool    // prefer forwards to backwards below that limit
	Deep     bool    // prefer forwards of later stages
	Patience float64 // share of a weight gradient's time for which a rank idles to run something better
	Noise    float64 // largest random part of the priorities
}

// greedyStage is the progress of a stage of one direction.
type greedyStage struct {
	dir, stage int
	forwards   []float64 // end times, in the order of unit
	backwards  []float64 // of input gradients
}

// greedyRank is the state of a rank.
type greedyRank struct {
	stages  []*greedyStage
	limit   float64 // in-flight units allowed
	clock   float64
	held    float64 // activations, in chunks of one slice
	pending []Unit  // weight gradients that may run
	order   []Unit
	next    option

	sequence []Unit // if set, the forwards and input gradients to run, in this order (see pattern)
}

// option is a unit that a rank could run next.
type option struct {
	unit  Unit
	owner *greedyStage // nil for weight gradients
	start float64
	score float64
	ok    bool
}

type greedy struct {
	s       *Schedule
	c       Costs
	cap     float64
	y       Policy
	rng     *rand.Rand
	ranks   []greedyRank
	stages  [][]greedyStage // by direction and stage
	units   int             // per stage and pass
	options []option        // scratch of choose
}

// newGreedy returns an empty construction. limit is the cap in chunks of one micro-batch.
func newGreedy(s *Schedule, c Costs, limit float64) *greedy {
	g := &greedy{s: s, c: c, cap: limit, ranks: make([]greedyRank, s.Ranks), stages: make([][]greedyStage, s.Directions()),
		units: s.MicrosPerDirection() * s.Slices}
	for dir, home := range s.Home {
		g.stages[dir] = make([]greedyStage, len(home))
		for stage, r := range home {
			k := &g.stages[dir][stage]
			k.dir, k.stage = dir, stage
			g.ranks[r].stages = append(g.ranks[r].stages, k)
		}
	}
	return g
}

// Order fills s.Orders by the policy, with all backwards split. It returns false if
// it got stuck at the memory limit. rng may be nil if the policy has no noise.
func (y Policy) Order(s *Schedule, c Costs, limit float64, rng *rand.Rand) bool {
	g := newGreedy(s, c, limit)
	g.y, g.rng = y, rng
	for r := range g.ranks {
		g.ranks[r].limit = g.warmLimit(r)
	}
	return g.complete()
}

// complete runs units until all are done. It returns false if it gets stuck.
func (g *greedy) complete() bool {
	for r := range g.ranks {
		g.choose(r)
	}
	for range 3 * g.units * g.s.Directions() * g.s.Stages() {
		best := -1
		for r := range g.ranks {
			if n := &g.ranks[r].next; n.ok && (best < 0 || n.start < g.ranks[best].next.start) {
				best = r
			}
		}
		if best < 0 {
			return false
		}
		g.run(best)
	}
	for r := range g.s.Orders {
		g.s.Orders[r] = g.ranks[r].order
	}
	return true
}

// warmLimit returns how much rank r may hold, in chunks of one slice: what the policy
// allows, but at least one micro-batch per stage and at most the cap.
func (g *greedy) warmLimit(r int) float64 {
	below := 0
	for _, k := range g.ranks[r].stages {
		below = max(below, g.s.Stages()-k.stage)
	}
	warm := math.Ceil(g.y.Warm * float64(below))
	return math.Min(g.cap, math.Max(warm, float64(len(g.ranks[r].stages)))) * float64(g.s.Slices)
}

// unit returns the i-th unit of a pass of a stage. Backwards take the slices of a
// micro-batch from the last to the first.
func (g *greedy) unit(k *greedyStage, pass Pass, i int) Unit {
	n := g.s.Slices
	u := Unit{Pass: pass, Dir: k.dir, Stage: k.stage, Micro: i / n, Slice: i % n}
	if pass != F {
		u.Slice = n - 1 - u.Slice
	}
	return u
}

// arrival returns when the inputs of the next forward or input gradient of a stage are
// there. It returns false if there is no such unit or an input is not computed.
func (g *greedy) arrival(k *greedyStage, pass Pass) (float64, bool) {
	at := 0.0
	need := func(from *greedyStage, list []float64, i int) bool {
		if i >= len(list) {
			return false
		}
		t := list[i]
		if g.s.Home[k.dir][from.stage] != g.s.Home[k.dir][k.stage] {
			t += g.c.Comm
		}
		at = max(at, t)
		return true
	}
	all := g.stages[k.dir]
	if pass == F {
		i := len(k.forwards)
		ok := i < g.units && (k.stage == 0 || need(&all[k.stage-1], all[k.stage-1].forwards, i))
		return at, ok
	}
	i, n := len(k.backwards), g.s.Slices
	forward := i/n*n + n - 1 - i%n // position of the same micro-batch and slice among the forwards
	ok := i < g.units && need(k, k.forwards, forward)
	if k.stage+1 < len(all) {
		ok = ok && need(&all[k.stage+1], all[k.stage+1].backwards, i)
	}
	if !ok {
		return 0, false
	}
	return at, true
}

// choose sets what rank r would run next.
func (g *greedy) choose(r int) {
	k := &g.ranks[r]
	if k.sequence != nil {
		k.next = g.follow(k)
		return
	}
	options := g.options[:0]
	add := func(o option) {
		o.start = max(o.start, k.clock)
		o.score += g.y.Noise * g.random()
		options = append(options, o)
	}
	for _, stage := range k.stages {
		if at, ok := g.arrival(stage, Bx); ok {
			add(option{unit: g.unit(stage, Bx, len(stage.backwards)), owner: stage, start: at, score: 3 + .001*float64(stage.stage), ok: true})
		}
		if at, ok := g.arrival(stage, F); ok && g.fits(k, stage) {
			score := 2.0
			if g.y.Forward {
				score = 4
			}
			if g.y.Deep {
				score += .01 * float64(stage.stage)
			}
			add(option{unit: g.unit(stage, F, len(stage.forwards)), owner: stage, start: at, score: score, ok: true})
		}
	}
	wait := 0.0
	if len(k.pending) > 0 {
		add(option{unit: k.pending[0], start: k.clock, score: 1, ok: true})
		wait = g.y.Patience * g.c.W
	}
	g.options = options
	k.next = option{}
	earliest := math.Inf(1)
	for _, o := range options {
		earliest = math.Min(earliest, o.start)
	}
	for _, o := range options {
		if o.start <= earliest+wait && (!k.next.ok || o.score > k.next.score) {
			k.next = o
		}
	}
}

func (g *greedy) random() float64 {
	if g.rng == nil {
		return 0
	}
	return g.rng.Float64()
}

// fits reports whether a forward leaves room for the later stages of its rank.
func (g *greedy) fits(k *greedyRank, stage *greedyStage) bool {
	later := 0
	for _, other := range k.stages {
		if other.stage > stage.stage && len(other.forwards) < g.units {
			later++
		}
	}
	return k.held+1+float64(later) <= k.limit+1e-9
}

// run executes what rank r has chosen. Then r and the rank that waits for the result
// choose again.
func (g *greedy) run(r int) {
	k := &g.ranks[r]
	o := k.next
	k.clock = o.start + g.c.Of(o.unit)
	k.held += g.c.Memory(o.unit)
	k.order = append(k.order, o.unit)
	touched := -1
	home := g.s.Home[o.unit.Dir]
	switch o.unit.Pass {
	case F:
		o.owner.forwards = append(o.owner.forwards, k.clock)
		if o.unit.Stage+1 < len(home) {
			touched = home[o.unit.Stage+1]
		}
	case Bx:
		o.owner.backwards = append(o.owner.backwards, k.clock)
		w := o.unit
		w.Pass = W
		k.pending = append(k.pending, w)
		if o.unit.Stage > 0 {
			touched = home[o.unit.Stage-1]
		}
	case W:
		k.pending = k.pending[1:]
	}
	if k.sequence != nil && o.unit.Pass != W {
		k.sequence = k.sequence[1:]
	}
	g.choose(r)
	if touched >= 0 && touched != r {
		g.choose(touched)
	}
}
