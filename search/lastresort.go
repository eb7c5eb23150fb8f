package search

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/plan"
)

// resortToFrugalest takes, where nothing has been found, the plan that lacks least memory. The enumeration may have
// missed it, since it assumes that choices are sorted by memory, which they mostly are. If that plan does not fit
// either, the error is a *Misfit, which names memory that would suffice: given that much, the plan is found here.
func resortToFrugalest(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	if len(found) > 0 {
		return found, nil
	}
	find := frugalestUniform
	if p.req.Pins.pipelined() {
		find = frugalestPipeline
	}
	frugal, err := find(ctx, p)
	if err != nil {
		return nil, err
	}
	pl := frugal.Plan
	if frugal.missing > 0 {
		frugal.choice.short = false
		pl, _, _ = p.plan(frugal.choice)
	}
	// Memory is reported to the byte, so the plan must be packed.
	c, err := Evaluate(ctx, p.req, pl, p.machine, frugal.Label)
	if err != nil {
		return nil, err
	}
	c.choice, c.Kind = frugal.choice, frugal.Kind
	if fits, err := c.Complete(ctx, p.req); err != nil {
		return nil, err
	} else if !fits {
		return nil, NewMisfit(c)
	}
	return shortlist{c}, c.simulate(p.machine)
}

// frugalestUniform returns the plan without pipelines that lacks least memory, within the pins.
func frugalestUniform(ctx context.Context, p *problem) (frugal *Candidate, err error) {
	if !p.divisible() {
		what, n := "ranks", p.graph.PerSequence()
		if n > 1 {
			what = "groups of ranks that share sequences or matrices"
		}
		return nil, fmt.Errorf("%w: global_batch %d is not a multiple of %d %s", ErrBatch, p.req.GlobalBatch/n, p.ranks/n, what)
	}
	b := slices.Min(p.microBatches())
	groups := p.groups(b)
	if p.req.Options.Clip > 0 && !p.req.Compact { // gradients wait for the norm all the same, but complete ones may be compressed
		groups = groups[:1]
	}
	exact := *p // what few of the micro-batches need is no answer here
	exact.untimed, exact.known = false, newEvaluations()
	for _, group := range groups {
		if frugal, err = frugalestOf(ctx, &exact, choice{b: b, group: group, tables: p.tables, short: shortens(p.batch/b, group)}, frugal); err != nil {
			return nil, err
		}
	}
	if frugal == nil {
		return nil, ErrPins
	}
	return frugal, nil
}

// frugalestOf returns the plan that lacks least memory of a candidate, which may be nil, and those of a choice of micro-batches.
// Where all of them go through a layer together, gradients may be used as they come, and activations wait instead.
func frugalestOf(ctx context.Context, p *problem, ch choice, frugal *Candidate) (*Candidate, error) {
	ladder := p.ladders(ch)[0]
	ways := []choice{{keep: ladder[0]}, {keep: ladder[len(ladder)-1], slots: 1}}
	if ch.group > 1 && !p.req.Pins.setsActivations() { // so many inputs of layers may be what the host has no room for
		ways = append(ways, choice{keep: p.keepLast(plan.Recomputed("full"), 0), slots: 1})
	}
	nearest := slices.Clone(p.placements)
	slices.SortStableFunc(nearest, func(a, b residency) int { return cmp.Compare(p.leastLack(a), p.leastLack(b)) })
	for _, ch.r = range nearest {
		r := ch.r
		if !p.req.Pins.allow(r) || r.state == device.DiskTier && p.machine.Capacity[device.DiskTier] == 0 {
			continue
		}
		if frugal != nil && p.leastLack(r) >= float64(p.lack(frugal)) {
			break
		}
		for _, ch.st = range p.styles(fastestPlan, ch.b, r) {
			for _, way := range ways {
				ch.keep, ch.slots = way.keep, way.slots
				c, err := p.evaluate(ctx, ch)
				if err != nil {
					return nil, err
				}
				if frugal == nil || p.lack(c) < p.lack(frugal) {
					frugal = c
				}
			}
		}
	}
	return frugal, nil
}

// lack returns by how many bytes the worst rank exceeds its capacities, summed over
// tiers.
func (p *problem) lack(c *Candidate) (most int64) {
	for _, prog := range c.Programs {
		var sum int64
		for t, h := range prog.Height {
			sum += max(0, h-p.machine.Capacity[t])
		}
		most = max(most, sum)
	}
	return most
}

// frugalestPipeline returns the pipeline that lacks least memory, of those that would exist with unlimited
// memory and have the smallest micro-batches and the most recomputation that the pins allow; ErrPipeline if
// there is none.
func frugalestPipeline(ctx context.Context, p *problem) (frugal *Candidate, err error) {
	const plenty = 1 << 50
	room, req := *p.machine, *p.req
	room.Shared = 0
	for t, n := range room.Capacity {
		room.Capacity[t] = min(n, 1) * plenty
	}
	pins := &req.Pins
	most, usual := "full", "1f1b"
	if pins.Slices > 1 || pins.Schedule == "seq1f1b" {
		take := plan.SlicesTake(p.graph)
		most, usual = take[len(take)-1], "seq1f1b"
	}
	pins.MicroBatch, pins.Recompute = cmp.Or(pins.MicroBatch, p.graph.CutSequences()), cmp.Or(pins.Recompute, most)
	if len(pins.Stages) == 0 {
		pins.Schedule = cmp.Or(pins.Schedule, usual)
	}
	for _, r := range residencies {
		if !p.req.Pins.allow(r) {
			continue
		}
		pins.Weights, pins.Grads, pins.State = &r.weights, &r.grads, &r.state
		c, err := frugalPipelineOf(ctx, p, newProblem(&req, &room))
		if err != nil {
			return nil, err
		}
		if c != nil && (frugal == nil || p.lack(c) < p.lack(frugal)) {
			frugal = c
		}
	}
	if frugal == nil {
		return nil, ErrPipeline
	}
	return frugal, nil
}

// frugalPipelineOf returns the pipeline that exceeds the machine's capacities least, of those that a
// problem with ample memory has.
func frugalPipelineOf(ctx context.Context, p, ample *problem) (frugal *Candidate, err error) {
	known := newEstimates(ample)
	for depth := 2; depth <= min(positions(p), len(p.graph.Segments)); depth++ {
		if pin := p.req.Pins.Pipeline; positions(p)%depth != 0 || pin != 0 && pin != depth {
			continue
		}
		for _, sh := range shapesOf(known, depth, nil) {
			for _, t := range sh.tasks(nil, false) {
				styles := ample.styles(fastestPlan, t.b, t.residency)
				c, err := t.lower(ctx, styles[len(styles)-1])
				if err != nil {
					return nil, err
				}
				if c == nil {
					continue
				}
				for _, prog := range c.Programs {
					prog.Capacity = p.machine.Capacity
				}
				if frugal == nil || p.lack(c) < p.lack(frugal) {
					frugal = c
				}
			}
		}
	}
	return frugal, nil
}
