package search

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
)

// Search returns the fastest plan that fits, with runners-up. progress (may be nil)
// receives messages about what is being tried. The error is a *Misfit if nothing
// fits; it is ErrBatch, ErrPins or ErrPipeline if the request cannot be met at all.
func Search(ctx context.Context, req *Request, m *Machine, progress func(string)) (*Result, error) {
	s := newSearch(ctx, req, m)
	s.progress = progress
	s.say("planning")
	if err := s.alike(); err != nil {
		return nil, err
	}
	if err := s.pipelines(); err != nil {
		return nil, err
	}
	if err := s.rivals(); err != nil {
		return nil, err
	}
	if len(s.found) == 0 {
		if err := s.lastResort(); err != nil {
			return nil, err
		}
	}
	if err := s.settle(); err != nil {
		return nil, err
	}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	s.thrifty()
	if err := s.complete(); err != nil {
		return nil, err
	}
	if err := s.trial(); err != nil {
		return nil, err
	}
	if err := s.pack(); err != nil {
		return nil, err
	}
	r := &Result{Best: s.found[0], Evaluated: s.evaluated}
	kinds := map[string]bool{}
	for _, c := range s.found[1:] { // the runner-up, and the best of every other kind
		if len(kinds) == 0 || !kinds[c.Kind] && c.Kind != r.Best.Kind {
			kinds[c.Kind], r.RunnersUp = true, append(r.RunnersUp, c)
		}
	}
	return r, r.Best.draw()
}

type search struct {
	ctx      context.Context
	req      *Request
	m        *Machine
	graph    *graph.Graph
	progress func(string)
	// ladders are activation policies per layer, each list from least work to least
	// memory
	ladders   [][][]plan.Retention
	ranks     int
	batch     int // sequences per step of one replica
	found     []*Candidate
	evaluated int
	spent     int                            // instructions lowered
	allowed   int                            // bound on spent in the present part of the search
	short     bool                           // steps of many micro-batches are shortened, see short.go
	grows     map[int][device.NumTiers]int64 // see growth
	reached   map[arrangement]float64        // best times
	any       bool                           // the first plan that fits is enough
	frugal    bool                           // only minimum-memory small decisions
	priced    map[int]*costs                 // by sequences per micro-batch
	lowered   int                            // instructions lowered for pipelines
	census    *census
}

func newSearch(ctx context.Context, req *Request, m *Machine) *search {
	ranks := max(req.Ranks, 1)
	return &search{ctx: ctx, req: req, m: m, graph: req.Graph, ranks: ranks, batch: req.GlobalBatch / ranks, priced: map[int]*costs{}, reached: map[arrangement]float64{}, grows: map[int][device.NumTiers]int64{}, census: newCensus(req.Graph)}
}

func (s *search) say(text string) {
	if s.progress != nil {
		s.progress(text)
	}
}

// enough is about half a minute's work, in instructions lowered. Once there is a plan, the enumeration may take
// half of that, and each part of alike after it a quarter, plus what earlier parts have left.
const enough = 6_000_000

// tired reports whether there is a plan and the effort is spent.
func (s *search) tired() bool { return len(s.found) > 0 && s.spent > s.allowed }

// alike tries plans in which every rank does the same with its part of the batch, that is, plans without
// pipelines. Where cores would update chunks during the backward pass, the search for a share of updates does
// not see the trips of gradients and weights that updates on the device save, so plans with all updates on the
// device are searched for separately. Where updates wait for the norm, they may be left to the next step.
func (s *search) alike() error {
	if s.batch*s.ranks != s.req.GlobalBatch || s.req.Pins.pipelined() {
		return nil
	}
	err := s.uniform()
	switch {
	case err != nil || len(s.found) == 0 || s.found[0].choice.r.state == device.DeviceTier:
		return err
	case s.req.Options.Clip > 0:
		return s.postpone()
	case s.req.Pins.Update != "":
		return nil
	}
	asked, pinned, found := s.req, *s.req, s.found
	pinned.Pins.Update = plan.UpdateOnDevice
	s.req, s.found, s.reached = &pinned, nil, map[arrangement]float64{}
	err = s.uniform()
	s.req, s.found = asked, append(found, s.found...)
	s.sort()
	return err
}

// uniform does alike's work, with or without updates pinned. It tries shortened steps first.
func (s *search) uniform() error {
	misfits := false // no plan fits whose step can't be shortened
	for _, s.short = range []bool{true, false} {
		if err := s.enumerate(misfits); err != nil {
			return err
		}
		misfits = len(s.found) == 0
		for _, part := range []func() error{s.balance, s.improve, s.lengthen} {
			s.allowed = max(s.allowed, s.spent) + enough/4
			if len(s.found) == 0 {
				break
			}
			if err := part(); err != nil {
				return err
			}
		}
		if len(s.found) > 0 || len(s.grows) == 0 {
			break // or nothing was shortened
		}
	}
	s.short = false
	return nil
}

// Fits returns nil if any plan fits. It does not look for the fastest.
func Fits(ctx context.Context, req *Request, m *Machine) error {
	s := newSearch(ctx, req, m)
	s.any = true
	if found, err := s.exists(); found || err != nil {
		return err
	}
	return s.lastResort()
}

// FitsFrugally reports whether a plan with minimum-memory small decisions fits. If none does, others seldom do,
// and it takes a small fraction of the time that Fits takes.
func FitsFrugally(ctx context.Context, req *Request, m *Machine) (bool, error) {
	s := newSearch(ctx, req, m)
	s.any, s.frugal = true, true
	return s.exists()
}

// exists reports whether any plan fits on all ranks.
func (s *search) exists() (bool, error) {
	if s.batch*s.ranks == s.req.GlobalBatch && !s.req.Pins.pipelined() {
		sizes := s.microBatches()
		slices.Reverse(sizes) // small ones need least memory
		for _, b := range sizes {
			for _, group := range s.groups(b) {
				s.ladders = s.retentions(b, group)
				if err := s.residencies(b, group); err != nil {
					return false, err
				}
				if done, err := s.enoughForAll(); done || err != nil {
					return done, err
				}
			}
		}
	}
	if err := s.pipelines(); err != nil {
		return false, err
	}
	return s.enoughForAll()
}

// enoughForAll reports whether a plan in s.found fits on all ranks. If none does,
// it clears s.found.
func (s *search) enoughForAll() (bool, error) {
	for _, c := range s.found {
		if fits, err := c.Complete(s.ctx, s.req); fits || err != nil {
			return fits, err
		}
	}
	s.found = nil
	return false, nil
}

// choice holds all decisions of a candidate.
type choice struct {
	b, group  int
	r         residency
	st        style
	keep      []plan.Retention
	residents int  // chunks that stay on the device, whatever r is
	streamed  int  // share of the other chunks' updates that the device does, in units of 1/updateParts
	deferred  bool // see plan.Plan.Defer
	slots     int  // 0: the default
}

func (s *search) evaluate(ch choice) (*Candidate, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	s.evaluated++
	b, r, st, residents := ch.b, ch.r, ch.st, ch.residents
	pl := plan.Plain(s.graph, b)
	pl.Ranks, pl.Optimizer, pl.State = s.ranks, s.req.Optimizer, s.req.State
	pl.MicroBatches, pl.Group = s.batch/b, ch.group
	pl.HeadRows = st.headRows
	pl.Activations = s.req.Pins.activations(ch.keep)
	pl.Slots = cmp.Or(s.req.Pins.Slots, ch.slots, pl.Slots)
	pl.Chunks = plan.Layout(s.graph, st.chunk)
	where := r.label
	if residents == len(pl.Chunks) {
		where = residenciesOf(s.ranks)[plan.ShardLevel(r.shard)].label // those with everything on the device come first
	}
	label := fmt.Sprintf("%s, micro-batch %d x %d", where, b, pl.MicroBatches)
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		c.Weights, c.Grads, c.State, c.Shard = r.weights, r.grads, r.state, r.shard
		if i < residents {
			c.Weights, c.Grads, c.State = device.DeviceTier, device.DeviceTier, device.DeviceTier // sharded as the others are
		}
	}
	if residents > 0 && residents < len(pl.Chunks) {
		label += fmt.Sprintf(", %d of %d chunks on the device", residents, len(pl.Chunks))
	}
	if n := s.stream(pl, ch.streamed); n > 0 {
		label += fmt.Sprintf(", %d chunks updated by the device", n)
	}
	if pl.Defer = ch.deferred; pl.Defer {
		label += ", updates deferred"
	}
	s.cache(pl, st)
	c, err := s.judge(pl, label)
	if c != nil {
		c.choice, c.Kind = ch, where
		for _, p := range c.Programs {
			s.spent += len(p.Instrs)
		}
	}
	return c, err
}

// cache sets the size of the device's weight cache and how early weights are
// prefetched.
func (s *search) cache(pl *plan.Plan, st style) {
	pl.Cache, pl.Prefetch = pl.CacheNeeded(s.graph), st.prefetch
	if pl.Cache > 0 {
		pl.Cache += st.spare * s.layerBytes()
	}
	if v := s.req.Pins.Cache; v > 0 {
		pl.Cache = v
	}
	if v := s.req.Pins.Prefetch; v > 0 {
		pl.Prefetch = v
	}
}

// keep simulates a candidate that fits and adds it to s.found.
func (s *search) keep(c *Candidate) error {
	if err := c.simulate(s.m); err != nil {
		return err
	}
	s.found = append(s.found, c)
	s.sort()
	return nil
}

// simulate simulates all candidates again, with the present costs.
func (s *search) simulate() error {
	for _, c := range s.found {
		if err := c.simulate(s.m); err != nil {
			return err
		}
	}
	s.sort()
	return nil
}

// sort sorts by time and drops duplicates and slower candidates: programs are large, so only a few of each kind
// and a few in all are held, but always the best of every kind.
func (s *search) sort() {
	const most, ofKind = 24, 4
	slices.SortStableFunc(s.found, func(a, b *Candidate) int { return cmp.Compare(a.Seconds(), b.Seconds()) })
	s.found = slices.CompactFunc(s.found, func(a, b *Candidate) bool { return a.Seconds() == b.Seconds() && reflect.DeepEqual(a.Plan, b.Plan) })
	count, all := map[string]int{}, 0
	s.found = slices.DeleteFunc(s.found, func(c *Candidate) bool {
		count[c.Kind]++
		if s.ranks > 1 && count[c.Kind] > ofKind || all >= most && count[c.Kind] > 1 {
			return true
		}
		all++
		return false
	})
}

// thrifty considers the candidates whose predicted times are too close to the fastest to tell apart. It puts
// first the one that would be fastest if the step waited after all for a part of what keeps links and the
// host's cores busy. All of them have micro-batches of the same size, since operators of other sizes may not
// have been timed.
func (s *search) thrifty() {
	const asFast, late = 1.005, 0.02
	first := s.found[0]
	feared := func(c *Candidate) float64 { return c.Seconds() + late*c.beside() }
	best := first
	for _, c := range s.found {
		if c.Seconds() <= asFast*first.Seconds() && c.Plan.MicroBatch == first.Plan.MicroBatch && feared(c) < feared(best) {
			best = c
		}
	}
	s.found = slices.Insert(slices.DeleteFunc(s.found, func(c *Candidate) bool { return c == best }), 0, best)
}

// settle replaces predictions by measurements where they decide: it times the
// fastest candidate's operators and simulates all candidates again, until the
// fastest is one that was timed.
func (s *search) settle() error {
	if s.m.Measure == nil {
		return nil
	}
	const rounds = 6
	measured := map[*Candidate]bool{}
	for range rounds {
		c := s.found[0]
		if measured[c] {
			return nil
		}
		measured[c] = true
		s.say("timing the operators of: " + c.Label)
		if err := s.m.Measure(c); err != nil {
			return err
		}
		if err := s.simulate(); err != nil {
			return err
		}
	}
	// Prefer a timed candidate over one that only looks faster.
	if i := slices.IndexFunc(s.found, func(c *Candidate) bool { return measured[c] }); i > 0 {
		c := s.found[i]
		s.found = slices.Insert(slices.Delete(s.found, i, i+1), 0, c)
	}
	return nil
}

// complete lowers the fastest candidate for all ranks. If a larger shard of one
// rank does not fit, it drops the candidate and takes the next.
func (s *search) complete() error {
	for len(s.found) > 0 {
		fits, err := s.found[0].Complete(s.ctx, s.req)
		if fits || err != nil {
			return err
		}
		s.found = s.found[1:]
	}
	return s.lastResort()
}

// pack repacks the chosen plan's memory where heuristics have not met the lower bound: with all heuristics, if
// the search took the first addresses that fit, and then by exact search. Tighter packings reuse memory sooner,
// which adds waits; one that makes the step slower is rejected.
func (s *search) pack() error {
	const (
		longer = 1.001 // bound on the ratio of step times
		most   = 16    // bound on programs lowered again; each search takes a tenth of a second
	)
	if len(s.found[0].Ranks) > most {
		return nil
	}
	for _, thorough := range []bool{false, true} {
		if !thorough && s.m.Shared > 0 { // programs were packed like this already
			continue
		}
		best := s.found[0]
		packed, err := s.packed(best, thorough)
		if err != nil {
			return err
		}
		if packed != nil && packed.seconds <= longer*best.seconds {
			s.found[0] = packed
		}
	}
	return nil
}

// packed returns a candidate with new addresses for the programs that do not meet their lower bounds, nil if
// all do.
func (s *search) packed(c *Candidate, thorough bool) (*Candidate, error) {
	packed := *c
	packed.Programs, packed.Ranks = slices.Clone(c.Programs), slices.Clone(c.Ranks)
	opt := s.req.Options
	opt.Capacity, opt.Thorough = c.Program.Capacity, thorough
	for i, p := range c.Ranks {
		if p.Height == p.Bound {
			continue
		}
		opt.Rank = p.Rank
		lower, err := lower.Lower(s.ctx, s.graph, c.Plan, opt)
		if err != nil {
			return nil, err
		}
		packed.Ranks[i] = lower
		if k := slices.Index(c.Programs, p); k >= 0 {
			packed.Programs[k] = lower
		}
	}
	if slices.Equal(packed.Ranks, c.Ranks) {
		return nil, nil
	}
	packed.Program = packed.Programs[0]
	return &packed, packed.simulate(s.m)
}

// lastResort takes the plan that lacks least memory. The enumeration may have missed it, since it assumes that
// choices are sorted by memory, which they mostly are. If that plan does not fit either, the error is a
// *Misfit, which names memory that would suffice: given that much, the plan is found here.
func (s *search) lastResort() error {
	find := s.frugalest
	if s.req.Pins.pipelined() {
		find = s.frugalestPipeline
	}
	frugal, err := find()
	if err != nil {
		return err
	}
	// Memory is reported to the byte, so the plan must be packed.
	c, err := Evaluate(s.ctx, s.req, frugal.Plan, s.m, frugal.Label)
	if err != nil {
		return err
	}
	c.choice, c.Kind = frugal.choice, frugal.Kind
	if fits, err := c.Complete(s.ctx, s.req); err != nil {
		return err
	} else if !fits {
		return NewMisfit(c)
	}
	return s.keep(c)
}

// frugalest returns the plan without pipelines that lacks least memory, within the pins.
func (s *search) frugalest() (frugal *Candidate, err error) {
	if s.batch*s.ranks != s.req.GlobalBatch {
		return nil, fmt.Errorf("%w: global_batch %d is not a multiple of %d ranks", ErrBatch, s.req.GlobalBatch, s.ranks)
	}
	b := slices.Min(s.microBatches())
	group := slices.Min(s.groups(b))
	s.ladders = s.retentions(b, group)
	for _, r := range residenciesOf(s.ranks) {
		if !s.req.Pins.allow(r) || r.state == device.DiskTier && s.m.Capacity[device.DiskTier] == 0 {
			continue
		}
		for _, st := range s.styles(b, r) {
			for _, level := range [][]plan.Retention{s.ladders[0][0], s.ladders[0][len(s.ladders[0])-1]} {
				c, err := s.evaluate(choice{b: b, group: group, r: r, st: st, keep: level})
				if err != nil {
					return nil, err
				}
				if frugal == nil || s.lack(c) < s.lack(frugal) {
					frugal = c
				}
			}
		}
	}
	if frugal == nil {
		return nil, ErrPins
	}
	return frugal, nil
}

// lack returns by how many bytes the worst rank exceeds its capacities, summed over
// tiers.
func (s *search) lack(c *Candidate) (most int64) {
	for _, p := range c.Programs {
		var sum int64
		for t, h := range p.Height {
			sum += max(0, h-s.m.Capacity[t])
		}
		most = max(most, sum)
	}
	return most
}
