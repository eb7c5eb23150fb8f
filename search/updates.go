package search

import (
	"context"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Who updates chunks whose state lives on the host or disk: the host's cores, or the device, through which the
// state is then streamed (plan.Chunk.Update).
//
// Approach. Both work in parallel, the cores at the rate of host memory and the
// device at that of its link, so the step is shortest if both end together. Rates
// suggest a share and whether it can pay; after the device's memory has been
// divided, the simulator decides whether it does, and which share is best.
//
// Example: 8 billion parameters on a described H200, 24 GB of it used, state on the host. With updates by the
// cores alone, the step takes 3.56 s, by the device alone 4.57 s, divided 3.54 s: copies take memory bandwidth
// from the cores, so there is little to gain.
//
// With clipping, all updates follow the backward pass, but only the next step needs them. So the
// fastest plans of each kind are tried with updates that the next step makes while its forward pass begins
// (plan.Plan.Defer). The bottleneck is then elsewhere, so memory is redivided for them, and activations are refined
// after that: what they were best at before is seldom best then.
//
// Known weakness: pipelines leave all updates to the cores, unless pinned, and defer none. Where kinds differ
// much in step time unless updates are deferred, the best of the slow kinds may be missed.

// updateParts is the number of equal parts in which updates are divided.
const updateParts = 64

// Updaters returns the values of Pins.Update: what updates chunks whose state is
// not on the device.
func Updaters() []string { return []string{device.HostTier.String(), plan.UpdateOnDevice} }

// streamUpdates assigns parts/updateParts of the updates of non-resident chunks to the device, and returns the number
// of chunks that it updates. They are spread evenly from first to last, so that cores and link are always busy.
func (p *problem) streamUpdates(pl *plan.Plan, parts int) (chunks int) {
	switch p.req.Pins.Update {
	case Updaters()[0]:
		parts = 0
	case Updaters()[1]:
		parts = updateParts
	}
	var seen, streamed int64
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		if first := &p.graph.Params[c.First]; parts == 0 || c.State == device.DeviceTier || first.Frozen || first.Indivisible {
			continue
		}
		n := elements(p.graph, *c)
		if seen += n; updateParts*(2*streamed+n) < int64(parts)*2*seen { // this chunk brings the share nearer
			c.Update = plan.UpdateOnDevice
			streamed += n
			chunks++
		}
	}
	return chunks
}

// stored returns how many elements of a chunk are stored.
func stored(g *graph.Graph, c plan.Chunk) (n int64) {
	if !c.Compact {
		return elements(g, c)
	}
	for i := c.First; i < c.Last; i++ {
		kept, _ := graph.Kept(g, i)
		n += kept
	}
	return n
}

// elements returns the number of elements of a chunk.
func elements(g *graph.Graph, c plan.Chunk) (n int64) {
	for i := c.First; i < c.Last; i++ {
		n += g.Stored(i).Elems()
	}
	return n
}

// updateShare returns the share of the host's updates that the device should take, or 0 if that cannot pay. It saves
// at most the cores' time for that share, and at most what follows the last gradient, without the disk's part.
func (b *balancing) updateShare() float64 {
	var last, host float64
	var elems int64
	var disk [device.NumStreams]float64
	p, spans := b.best.Program, b.best.spans[0]
	for i := range p.Instrs {
		in := &p.Instrs[i]
		switch {
		case in.Stream == device.Compute && in.Key.Dir != program.Optimizer:
			last = max(last, spans[i].End)
		case in.Stream == device.HostCompute && optimizer.Updating(in.Op) != nil:
			host += spans[i].End - spans[i].Start
			elems += int64(in.Args[graph.AdamWP].Rows * in.Args[graph.AdamWP].Cols)
		}
	}
	if elems == 0 {
		return 0
	}
	for i := range p.Instrs {
		if s := p.Instrs[i].Stream; (s == device.DiskRead || s == device.DiskWrite) && spans[i].End > last {
			disk[s] += spans[i].End - max(spans[i].Start, last)
		}
	}
	part := host / (host + b.p.prices.carry(elems, b.best.choice.r))
	saved := min(host*part, b.best.Seconds()-b.best.beyond-last-max(disk[device.DiskRead], disk[device.DiskWrite]))
	if saved < worthwhile*b.best.Seconds() {
		return 0
	}
	return part
}

// otherGrads returns the placement whose gradients wait on the other of device and host, if there is one.
func otherGrads(p *problem, r residency) (other residency, ok bool) {
	i := slices.IndexFunc(p.placements, func(o residency) bool {
		return o.weights == r.weights && o.state == r.state && o.shard == r.shard && o.grads != r.grads
	})
	if i < 0 || !p.req.Pins.allow(p.placements[i]) {
		return r, false
	}
	return p.placements[i], true
}

// sameAsNearer reports whether a choice's plans are those of the placement with gradients on the device as long as the cores
// make all updates: gradients are complete after one visit, and leave the device then.
func sameAsNearer(p *problem, ch choice) bool {
	if ch.r.grads != device.HostTier || ch.group*ch.b != p.batch || p.graph.Model.Tied || p.req.Pins.Update == plan.UpdateOnDevice {
		return false
	}
	_, ok := otherGrads(p, ch.r)
	return ok
}

// divideUpdates tries the share that rates suggest, for gradients where they are and on the other tier: those of chunks that
// the device updates can stay there, or make room.
func (b *balancing) divideUpdates(ctx context.Context) error {
	parts, all := int(math.Round(updateParts*b.updateShare())), len(b.levels)+1
	taken, err := b.tryMove(ctx, spend{updates: parts}, all)
	if err != nil || parts == 0 {
		return err
	}
	if taken {
		parts = 0
	}
	_, err = b.tryMove(ctx, spend{updates: parts, grads: true}, all)
	return err
}

// tuneUpdates improves the share by search.
func (b *balancing) tuneUpdates(ctx context.Context) error {
	if ch := &b.best.choice; ch.streamed == 0 && !ch.deferred && b.updateShare() == 0 {
		return nil
	}
	for step := updateParts / 2; step >= 1; step /= 2 {
		if err := b.tryMoves(ctx, []spend{{updates: step}, {updates: step, grads: true}, {updates: -step}}, len(b.levels)+1); err != nil {
			return err
		}
	}
	return nil
}

// defers reports whether updates may be left to the next step, those that wait for the norm, and could gain by it: where
// everything fits on the device, but not without recomputation, what then waits on the host makes room.
func defers(p *problem, found shortlist) bool {
	return p.req.Options.Clip > 0 && !found[0].roomy()
}

// deferUpdates defers the updates of the fastest candidate of each kind whose steps are whole, and redivides memory, for which
// they run a race. What is done about activations then is done for the plan that will be.
func deferUpdates(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	if !defers(p, found) {
		return found, nil
	}
	found, _, err := deferEach(ctx, p, found)
	return found, err
}

// deferEach defers the updates of the fastest whole candidate of each kind that has none with deferred updates. It returns
// also what it has made of these.
func deferEach(ctx context.Context, p *problem, found shortlist) (more shortlist, made []*Candidate, err error) {
	const most = 12
	elsewhere := slices.DeleteFunc(slices.Clone(found), func(c *Candidate) bool { return c.choice.r.state == device.DeviceTier })
	starts := slices.DeleteFunc(elsewhere.ofStarts(most), func(c *Candidate) bool {
		later := c.kind()
		later.deferred = true
		return c.missing > 0 || c.choice.deferred || slices.ContainsFunc(elsewhere, func(o *Candidate) bool { return o.kind() == later && o.Seconds() <= c.Seconds() })
	})
	var field []*balancing
	_, err = tryInTurn(ctx, p, len(starts), func(ctx context.Context, p *problem, i int) {
		_, _ = deferUpdatesOf(ctx, p, starts[i])
	}, func(i int) (tired bool, err error) {
		if p.told.exhausted() {
			return true, nil
		}
		b, err := deferUpdatesOf(ctx, p, starts[i])
		if b != nil {
			found, field = found.add(b.best), append(field, b)
		}
		return false, err
	})
	if err != nil {
		return nil, nil, err
	}
	found, err = race(ctx, p, found, field)
	for _, b := range field {
		made = append(made, b.best)
	}
	return found, made, err
}

// deferWholeSteps defers the updates of candidates that had shortened steps until now. Deferred candidates are kept only if
// they save enough.
func deferWholeSteps(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	p.told.begin(toImprove, toImprove+inPipelines(p))
	found, made, err := deferEach(ctx, p, found)
	if err != nil {
		return nil, err
	}
	p.told.begin(toImprove, inPipelines(p))
	if found, err = polish(ctx, p, found, made); err != nil {
		return nil, err
	}
	now := slices.IndexFunc(found, func(c *Candidate) bool { return !c.choice.deferred })
	if now > 0 && found[0].Seconds() > found[now].Seconds()*(1-convincing) {
		found = slices.DeleteFunc(slices.Clone(found), func(c *Candidate) bool { return c.choice.deferred })
	}
	return found, nil
}

// deferUpdatesOf begins to divide the memory of a candidate with deferred updates: divided as they are, with gradients on either
// tier, since those that stay on the device cannot wait, or all made by the cores, for which nothing waits any more. It
// returns nil if none fits.
func deferUpdatesOf(ctx context.Context, p *problem, c *Candidate) (*balancing, error) {
	b := newBalancing(p, c)
	var best *Candidate
	cores, now := c.choice, c.choice
	cores.streamed = 0
	if sameAsNearer(p, cores) {
		cores.r, _ = otherGrads(p, cores.r)
	}
	list := []choice{cores}
	if now.streamed > 0 {
		list = append(list, now)
		if other, ok := otherGrads(p, now.r); ok {
			now.r = other
			list = append(list, now)
		}
	}
	for _, ch := range list {
		ch.deferred = true
		later, err := b.leastRecomputation(ctx, ch, len(b.levels)+1)
		if err != nil {
			return nil, err
		}
		if later == nil {
			continue
		}
		if err := later.simulate(p.machine); err != nil {
			return nil, err
		}
		if best == nil || later.Seconds() < best.Seconds() {
			best = later
		}
	}
	if best == nil {
		return nil, nil
	}
	b.best = best
	return b, nil
}
