package search

import (
	"cmp"
	"context"
	"slices"

	"github.com/athanor-llm/athanor/device"
)

// How to divide the device's memory among its uses.
//
// Approach. The enumeration filled memory greedily: first with activations that need not be recomputed, then
// with chunks that stay. A byte can do more elsewhere: a resident chunk saves its transfers and the slower
// update (Elixir's J), a larger cache one transfer or gather (its I), an activation its recomputation. What
// each saves depends on what overlaps with what, so it is not computed. The search moves memory from one use to
// another, by large steps first, and the simulator judges each move. Recomputation absorbs what the others
// leave.
//
//	residents  0 ......... chunks      per step: more or fewer of one,
//	cache      one unit .. all         or one for the other
//
// At the smallest step, prefetch distance and head rows vary too, head rows also in exchange for cache or
// residents.
//
// Example: 10 billion parameters on four GPUs of 40 GB. Without recomputation 30 of
// 50 chunks fit; with full recomputation all but two, and the step is a fifth
// shorter.
//
// Known weakness: a pattern search ends in a local optimum, and in a different one with different memory. So a
// plan may be a few percent slower than the plan for less memory (TestMonotoneSteps).

// mostKinds bounds how many candidates, of different micro-batches or placements, are improved, as far as the
// effort allows.
const mostKinds = 12

// What a race bounds: mostStarts, how many have their updates divided, before which their times say little, and mostRacing,
// how many then have their memory divided.
const (
	mostStarts = 24
	mostRacing = 8
)

// divideMemory improves the fastest candidates, one of each kind.
func divideMemory(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	return race(ctx, p, found, memoryField(p, found))
}

// race divides the memory of candidates, by ever smaller steps. After each round those that are too far behind drop
// out, and of those that have come to the same plan all but one.
func race(ctx context.Context, p *problem, found shortlist, field []*balancing) (shortlist, error) {
	if p.req.Pins.dividesMemory() {
		return found, nil
	}
	for round := 0; len(field) > 0; round++ {
		var going []*balancing
		starts := make([]balancing, len(field))
		for i, b := range field {
			starts[i] = *b
		}
		_, err := tryInTurn(ctx, p, len(field), func(ctx context.Context, p *problem, i int) {
			own := starts[i]
			own.p = p
			_, _ = own.divide(ctx, round)
		}, func(i int) (tired bool, err error) {
			b := field[i]
			if p.told.exhausted() {
				return true, nil
			}
			p.told.say(planning+": dividing the memory of "+b.best.Label, found)
			start := b.best
			more, err := b.divide(ctx, round)
			if b.best != start {
				found = found.add(b.best)
			}
			if more {
				going = append(going, b)
			}
			return false, err
		})
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(going, func(a, b *balancing) int { return cmp.Compare(a.best.Seconds(), b.best.Seconds()) })
		field = slices.DeleteFunc(going, func(b *balancing) bool { return b.best.Seconds() > raceMargin(round)*found[0].Seconds() })
		if round > 0 { // memory has been divided
			field = slices.CompactFunc(field, func(a, b *balancing) bool { return a.best.sameAs(b.best) }) // they have met
		}
		field = field[:min(len(field), mostRacing)]
		of := map[kind]int{}
		field = slices.DeleteFunc(field, func(b *balancing) bool {
			of[b.best.kind()]++
			return of[b.best.kind()] > raceOfKind
		})
	}
	return found, nil
}

// raceMargin returns how far, as a ratio of times, a candidate may be behind the fastest after a round of a race to stay
// in it: the smaller the steps, the less they can still gain, down to what layers that are cut gain.
func raceMargin(round int) float64 { return 1 + max(0.2/float64(int(1)<<round), 0.06) }

// raceOfKind is how many candidates of a kind stay in a race after a round: they tend to the same plan.
const raceOfKind = 3

// memoryField returns where to begin to divide memory.
func memoryField(p *problem, found shortlist) (field []*balancing) {
	seen := map[start]bool{}
	for _, c := range found {
		k := c.start()
		if seen[k] || len(field) >= mostStarts || p.hopeless(k.b, k.r, found) {
			continue
		}
		seen[k] = true
		for _, start := range p.releasePlacements(c) {
			field = append(field, &balancing{p: p, best: start, levels: p.ladders(c.choice)[k.ladder]})
		}
	}
	return field
}

// Shares of a step that a different way of updating must save. Predictions err by more than some such savings:
// an H200's host took 3.5 ms for updates of GPT-2 that were predicted to take 2.0, so a step that should have
// been shorter by less than 1 % was longer by as much.
const (
	worthwhile = 5e-3 // before the device takes over some of the host's updates
	convincing = 2e-2 // before chunks are moved to the host without need
)

// releasePlacements returns a candidate and, where everything fits on the device so that no other placement was tried,
// copies of it with placements that let chunks leave the device: the host's cores then update those chunks
// while the device updates the others.
func (p *problem) releasePlacements(c *Candidate) []*Candidate {
	list, here := []*Candidate{c}, c.choice.r
	if !c.roomy() || p.machine.Capacity[device.HostTier] == 0 {
		return list
	}
	for _, r := range p.placements {
		if r.state == device.HostTier && r.shard == here.shard && p.leastUpdate(here)-p.leastUpdate(r) >= convincing*c.Seconds() {
			free := *c
			free.choice.r, free.choice.residents = r, len(c.Plan.Chunks)
			list = append(list, &free)
		}
	}
	return list
}

// balancing is the search that starts from one candidate.
type balancing struct {
	p      *problem
	best   *Candidate
	levels ladder
}

// newBalancing begins to divide a candidate's memory, with activation policies around its present ones.
func newBalancing(p *problem, c *Candidate) *balancing {
	ch := c.choice
	return &balancing{p: p, best: c, levels: slices.Concat(p.rungsAbove(ch), ladder{ch.keep}, p.rungsBelow(ch))}
}

// spend is a change to a choice: resident chunks, layers of cache, units of prefetching, sizes by which head
// rows grow (see resizeHead), parts of the updates that the device takes over, and whether gradients wait on the other
// of device and host. Negative numbers mean less.
type spend struct {
	residents int
	spare     int64
	prefetch  int
	head      int
	updates   int
	grads     bool
}

// divide divides first the updates of chunks that are not on the device, then memory, by steps that become smaller from
// round to round, and reports whether there are smaller ones. In the last round layers are cut.
func (b *balancing) divide(ctx context.Context, round int) (more bool, err error) {
	if round == 0 {
		return true, b.divideUpdates(ctx)
	}
	const fewest = 2 // one may be a norm, too small to move by itself
	step := max(len(b.best.Plan.Chunks)/4, fewest) >> (round - 1)
	if step == 0 {
		return false, b.divideParts(ctx)
	}
	return true, b.moveBy(ctx, step)
}

// divideParts divides memory in parts of layers, where some but not all chunks stay. It also tunes the
// division of updates.
func (b *balancing) divideParts(ctx context.Context) error {
	if err := b.cutLayers(ctx); err != nil {
		return err
	}
	return b.tuneUpdates(ctx)
}

// partsOfLayer is the number of chunks into which cutLayers cuts a layer.
const partsOfLayer = 4

// cutLayers cuts layers into several chunks, if some but not all are on the device, and continues from there. It reverts if
// that does not help.
func (b *balancing) cutLayers(ctx context.Context) error {
	whole, ch := b.best, b.best.choice
	part := b.p.layerBytes / b.p.graph.Narrowest().Size() / partsOfLayer
	if ch.residents == 0 || ch.residents == len(whole.Plan.Chunks) || ch.st.chunk <= part {
		return nil
	}
	ch.st.chunk = part
	last := whole.Plan.Chunks[ch.residents-1].Last
	ch.residents = 0
	for _, c := range b.p.needs.layout(ch.st.chunk) {
		if c.Last <= last {
			ch.residents++
		}
	}
	var cut *Candidate
	for ch.slots = whole.Plan.Slots; ch.slots <= partsOfLayer*whole.Plan.Slots; ch.slots *= 2 {
		c, err := b.leastRecomputation(ctx, ch, 1)
		if err != nil {
			return err
		}
		if c == nil {
			break
		}
		if err := c.simulate(b.p.machine); err != nil {
			return err
		}
		if cut == nil || c.Seconds() < cut.Seconds() {
			cut = c
		}
	}
	if cut == nil {
		return nil
	}
	b.best = cut
	if err := b.moveMemory(ctx, partsOfLayer); err != nil {
		return err
	}
	if whole.Seconds() <= b.best.Seconds() {
		b.best = whole
	}
	return nil
}

// heads are changes to the number of rows of logits that are computed at a time.
var heads = []spend{{head: 1}, {head: -1}, {head: 2}, {head: -2}, {head: -3}}

// moveMemory moves memory between uses, step chunks or layers at a time for as long as that helps, then half as
// many, down to one.
func (b *balancing) moveMemory(ctx context.Context, step int) error {
	for ; step >= 1; step /= 2 {
		if err := b.moveBy(ctx, step); err != nil {
			return err
		}
	}
	return nil
}

// moveBy moves memory between uses, step chunks or layers at a time.
func (b *balancing) moveBy(ctx context.Context, step int) error {
	n, m := step, int64(step)
	moves := []spend{{residents: n}, {residents: -n}, {spare: m}, {spare: -m}, {residents: n, spare: -m}, {residents: -n, spare: m}}
	if step == 1 {
		moves = slices.Concat([]spend{{}}, heads, moves, []spend{{prefetch: 1}, {prefetch: -1}, {head: 1, spare: -1}, {head: -1, spare: 1}, {head: 1, residents: -1}, {head: -1, residents: 1}})
	}
	return b.tryMoves(ctx, moves, step)
}

// tryMoves tries changes in turn, each for as long as it helps.
func (b *balancing) tryMoves(ctx context.Context, moves []spend, within int) error {
	for len(moves) > 0 {
		now, left := *b, moves
		i, err := tryInTurn(ctx, b.p, len(left), func(ctx context.Context, p *problem, i int) {
			own := now
			own.p = p
			_, _ = own.tryMove(ctx, left[i], within)
		}, func(i int) (better bool, err error) { return b.tryMove(ctx, moves[i], within) })
		if err != nil {
			return err
		}
		if i < len(moves) && moves[i] == (spend{}) {
			i++
		}
		moves = moves[i:]
	}
	return nil
}

// tryMove tries a change with the least recomputation that then fits, to within some rungs, and takes what is faster.
func (b *balancing) tryMove(ctx context.Context, d spend, within int) (better bool, err error) {
	c, err := b.move(ctx, d, within)
	if err != nil || c == nil || c.Seconds() >= b.best.Seconds()*(1-1e-6) {
		return false, err
	}
	b.best = c
	return true, nil
}

// move returns the candidate with a change and the least recomputation that then fits, to within some rungs; nil if none does,
// or the change is not to be had.
func (b *balancing) move(ctx context.Context, d spend, within int) (*Candidate, error) {
	if b.p.told.exhausted() {
		return nil, nil
	}
	ch := b.best.choice
	chunks := len(b.best.Plan.Chunks)
	ch.divided = true
	ch.residents += d.residents
	ch.streamed += d.updates
	ch.st.spare += d.spare
	ch.st.prefetch += d.prefetch
	ch.st.headRows = b.resizeHead(ch, d.head)
	cached := b.best.Plan.Cache > 0
	if d.grads {
		other, ok := otherGrads(b.p, ch.r)
		if ch.r = other; !ok {
			return nil, nil
		}
	}
	switch {
	case ch.residents < 0 || ch.residents > chunks || ch.st.spare < 0 || ch.st.spare > int64(chunks) || ch.st.prefetch < 1:
		return nil, nil
	case ch.streamed < 0 || ch.streamed > updateParts || d.updates != 0 && b.p.req.Pins.Update != "":
		return nil, nil
	case d.residents != 0 && ch.r.state == device.DeviceTier, (d.spare != 0 || d.prefetch != 0) && !cached:
		return nil, nil
	case d.prefetch != 0 && b.p.req.Pins.Prefetch > 0, d.head != 0 && (b.p.req.Pins.HeadRows > 0 || ch.st.headRows == b.best.choice.st.headRows):
		return nil, nil
	}
	c, err := b.leastRecomputation(ctx, ch, within)
	if err != nil || c == nil {
		return nil, err
	}
	return c, c.simulate(b.p.machine)
}

// resizeHead returns the number of head rows that is |by| sizes larger or smaller. A change by a single size may
// merely move buffers and so hide that the next one is better.
func (b *balancing) resizeHead(ch choice, by int) int {
	rows, seq, all := ch.st.headRows, b.p.graph.Seq, ch.b*b.p.graph.Seq
	for ; by < 0 && rows > 32; by++ {
		rows = b.p.req.fewerRows(rows)
	}
	for ; by > 0; by-- {
		for d := 2; rows*d <= all && d <= 64; d++ {
			if next := rows * d; seq%next == 0 || next%seq == 0 && all%next == 0 {
				rows = next
				break
			}
		}
	}
	return rows
}

// leastRecomputation finds the least recomputation that fits, to within some rungs, or nil. It starts at the choice's
// rung.
func (b *balancing) leastRecomputation(ctx context.Context, ch choice, within int) (*Candidate, error) {
	start := max(b.levels.rung(ch.keep), 0)
	rungs := border{b.p, everyTier, len(b.levels), func(i int) choice { ch.keep = b.levels[i]; return ch }, within}
	_, fit, err := rungs.find(ctx, start)
	return fit, err
}
