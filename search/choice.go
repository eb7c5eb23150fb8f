package search

import (
	"cmp"
	"context"
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// What a plan is made of before it is a plan.

// residency says where the three kinds of parameter memory live.
type residency struct {
	label                 string
	weights, grads, state device.Tier
	shard                 string // of several ranks, see plan.Shardings
}

var residencies = []residency{
	{"everything on the device", device.DeviceTier, device.DeviceTier, device.DeviceTier, ""},
	{"optimizer on the host", device.DeviceTier, device.DeviceTier, device.HostTier, ""},
	{"optimizer and gradients on the host", device.DeviceTier, device.HostTier, device.HostTier, ""},
	{"weights and optimizer on the host", device.HostTier, device.DeviceTier, device.HostTier, ""},
	{"all parameters on the host", device.HostTier, device.HostTier, device.HostTier, ""},
	{"optimizer on disk", device.DeviceTier, device.DeviceTier, device.DiskTier, ""},
	{"gradients on the host, optimizer on disk", device.DeviceTier, device.HostTier, device.DiskTier, ""},
	{"all parameters on the host, optimizer on disk", device.HostTier, device.HostTier, device.DiskTier, ""},
}

// residenciesOf lists the residencies of groups of ranks that share parameters: each first with nothing divided
// among the ranks, then with more and more.
func residenciesOf(group int) []residency {
	if group == 1 {
		return residencies
	}
	var list []residency
	for _, r := range residencies {
		for _, shard := range plan.Shardings() {
			switch {
			case r.weights == device.HostTier && (shard == "state" || shard == "grads"):
				continue // what is gathered goes through the device
			case r.state != device.DeviceTier && shard == "":
				continue // every rank's host would do all of the work
			}
			if shard != "" {
				list = append(list, residency{fmt.Sprintf("%s, %s sharded", r.label, shard), r.weights, r.grads, r.state, shard})
				continue
			}
			list = append(list, r)
		}
	}
	return list
}

// farther reports whether a placement has the same sharding as another and nothing nearer than it.
func (r residency) farther(than residency) bool {
	return r.shard == than.shard && r.weights >= than.weights && r.grads >= than.grads && r.state >= than.state
}

// style is how roomy the small decisions are.
type style struct {
	headRows int
	feedRows int   // 0: all
	eager    bool  // see plan.Plan.KVEager
	chunk    int64 // elements
	spare    int64 // cache beyond what one unit needs, in layers
	prefetch int
}

// choice holds all decisions of a candidate.
type choice struct {
	b, group  int
	r         residency
	st        style
	keep      []plan.Retention
	ladder    int  // that keep was first found in, see ladders
	divided   bool // memory has been divided among its uses, see balance.go
	residents int  // chunks that stay on the device, whatever r is
	streamed  int  // share of the other chunks' updates that the device does, in units of 1/updateParts
	deferred  bool // see plan.Plan.Defer
	slots     int  // 0: the default
	tables    bool // are on the host, see tables.go
	heads     bool // are exchanged by ranks that share sequences, see exchange.go
	short     bool // the step is shortened, see short.go
}

// evaluate lowers the plan of a choice and checks its memory. If it certainly exceeds one of the given tiers (see
// needs), there is no program, and its needs are lower bounds. Many choices are met again on other ways, and most of
// these do not fit, so the needs of those that do not are remembered.
func (p *problem) evaluate(ctx context.Context, ch choice, tiers ...device.Tier) (*Candidate, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if p.halt != nil && p.halt.Load() {
		return nil, errHalted
	}
	pl, where, label := p.plan(ch)
	if c := p.needs.dismiss(pl, ch, tiers); c != nil {
		c.Label, c.Kind = label, where
		return c, nil
	}
	key := fmt.Sprint(ch)
	if c, ok := p.known.refusal(key); ok {
		c.Plan, c.Label, c.Kind, c.choice = pl, label, where, ch
		return &c, nil
	}
	e := p.known.of(key, p.halt != nil, func() (*Candidate, int, error) { return judgeChoice(ctx, p, ch) })
	if e.err != nil {
		return nil, e.err
	}
	p.told.evaluated++
	p.told.lowered += e.lowered
	c := *e.c
	if c.Kind, c.choice = where, ch; !c.Fits && p.halt == nil {
		p.known.refuse(key, &c)
	}
	return &c, nil
}

// judgeChoice judges the plan of a choice, and returns how many instructions were lowered. What does not fit has no
// instructions.
func judgeChoice(ctx context.Context, p *problem, ch choice) (c *Candidate, lowered int, err error) {
	pl, _, label := p.plan(ch)
	if c, err = p.judge(ctx, pl, label, ch.short); err != nil {
		return nil, 0, err
	}
	for i, prog := range c.Programs {
		lowered += len(prog.Instrs)
		if !c.Fits {
			c.Programs[i] = &program.Program{Rank: prog.Rank, Height: prog.Height, Bound: prog.Bound, Capacity: prog.Capacity}
		}
	}
	c.Program = c.Programs[0]
	return c, lowered, nil
}

// plan returns the plan of a choice, the name of its placement, and a description.
func (p *problem) plan(ch choice) (pl *plan.Plan, where, label string) {
	r, residents := ch.r, ch.residents
	plain := *p.needs.plain
	pl = &plain
	pl.Ranks, pl.Optimizer, pl.State = p.ranks, p.req.Optimizer, p.req.State
	pl.MicroBatch, pl.MicroBatches, pl.Group = ch.b, p.batch/ch.b, ch.group
	pl.HeadRows, pl.FeedRows = ch.st.headRows, ch.st.feedRows
	p.req.setExchange(pl, ch, p.machine.Capacity[device.DeviceTier])
	pl.Activations = p.req.Pins.activations(ch.keep)
	pl.Slots = cmp.Or(p.req.Pins.Slots, ch.slots, pl.Slots)
	pl.Chunks = p.needs.layout(ch.st.chunk)
	where = r.label
	if residents == len(pl.Chunks) {
		where = p.placements[plan.ShardLevel(r.shard)].label // those with everything on the device come first
	}
	label = fmt.Sprintf("%s, micro-batch %d x %d", where, ch.b, pl.MicroBatches)
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		c.Weights, c.Grads, c.State, c.Shard = r.weights, r.grads, r.state, r.shard
		c.Compact = p.req.Compact && c.Sparse(p.graph)
		if i < residents {
			c.Weights, c.Grads, c.State = device.DeviceTier, device.DeviceTier, device.DeviceTier // sharded as the others are
		}
	}
	if p.req.Compact {
		label += ", zeros not stored"
	}
	if ch.tables {
		tablesToHost(p.graph, pl.Chunks)
		label += ", embeddings looked up on the host"
	}
	if residents > 0 && residents < len(pl.Chunks) {
		label += fmt.Sprintf(", %d of %d chunks on the device", residents, len(pl.Chunks))
	}
	if n := p.streamUpdates(pl, ch.streamed); n > 0 {
		label += fmt.Sprintf(", %d chunks updated by the device", n)
	}
	if pl.Defer = ch.deferred; pl.Defer {
		label += ", updates deferred"
	}
	p.setCache(pl, ch.st)
	return pl, where, label
}

// setCache sets the size of the device's weight cache and how early weights are
// prefetched.
func (p *problem) setCache(pl *plan.Plan, st style) {
	pl.Cache, pl.Prefetch = pl.CacheNeeded(p.graph), st.prefetch
	if pl.Cache > 0 {
		pl.Cache += st.spare * p.layerBytes
	}
	if v := p.req.Pins.Cache; v > 0 {
		pl.Cache = v
	}
	if v := p.req.Pins.Prefetch; v > 0 {
		pl.Prefetch = v
	}
}
