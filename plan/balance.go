package plan

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
)

// How to divide the device's memory among its uses.
//
// Approach. The enumeration filled memory greedily: first activations that need not
// be recomputed, then chunks that stay. A byte can do more elsewhere: a resident
// chunk saves its transfers and the slower update (Elixir's J), a larger cache one
// transfer or gather (its I), an activation its recomputation. Their values depend
// on what overlaps with what, so none is computed. The search moves memory from one
// use to another, by large steps first, and the simulator judges each move.
// Recomputation absorbs what the others leave.
//
//	residents  0 ......... chunks      per step: more or fewer of one,
//	cache      one unit .. all         or one for the other
//
// With the smallest steps, prefetch distance and head rows vary too.
//
// Example: 10 billion parameters on four GPUs of 40 GB. Without recomputation 30 of
// 50 chunks fit; with full recomputation all but two, and the step is a fifth
// shorter.
//
// Known weakness: a pattern search ends in a local optimum.

// mostKinds bounds the candidates, of different micro-batches or placements, that are
// improved, as far as the effort allows.
const mostKinds = 8

// balance improves the fastest candidates, one of each kind.
func (s *search) balance() error {
	if p := &s.req.Pins; p.Cache > 0 || p.Weights != nil || p.Grads != nil || p.State != nil || p.Policy != "" {
		return nil
	}
	type kind struct {
		b, group int
		r        residency
		ladder   int
	}
	seen := map[kind]bool{}
	for _, c := range slices.Clone(s.found) {
		ladders := s.retentions(c.choice.b, c.choice.group)
		at := slices.IndexFunc(ladders, func(l [][]program.Retention) bool { return rung(l, c.choice.keep) >= 0 })
		k := kind{c.choice.b, c.choice.group, c.choice.r, max(at, 0)}
		if seen[k] || len(seen) == mostKinds || s.tired() || s.hopeless(k.b, k.r) {
			continue
		}
		seen[k] = true
		if s.progress != nil {
			s.progress("dividing the memory of: " + c.Label)
		}
		if err := (&balancing{s, s.released(c, ladders[k.ladder]), ladders[k.ladder]}).run(); err != nil {
			return err
		}
	}
	return nil
}

// worthwhile is the share of a step that host updates must save before chunks are
// moved to the host without need.
const worthwhile = 5e-3

// released returns a candidate whose chunks may leave the device. If everything
// fits there, no other placement was tried. The same candidate also has the
// placement "optimizer on the host" with all chunks resident, and may gain by
// giving some up: host cores then update those while the device updates the others.
func (s *search) released(c *Candidate, ladder [][]program.Retention) *Candidate {
	here, there := c.choice.r, residency{state: device.HostTier, shard: c.choice.r.shard}
	if here.state != device.DeviceTier || rung(ladder, c.choice.keep) != 0 || s.m.Capacity[device.HostTier] == 0 {
		return c
	}
	if s.update(here)-s.update(there) < worthwhile*c.Seconds() {
		return c
	}
	for _, r := range residenciesOf(s.ranks) {
		if there.label = r.label; r == there {
			free := *c
			free.choice.r, free.choice.residents = r, len(c.Plan.Chunks)
			return &free
		}
	}
	return c // unsharded, every rank's host would do all updates
}

// balancing is the search that starts from one candidate.
type balancing struct {
	*search
	best   *Candidate
	levels [][]program.Retention // activation policies, from least work to least memory
}

// rung returns the index of an activation policy in a ladder, or -1.
func rung(ladder [][]program.Retention, keep []program.Retention) int {
	return slices.IndexFunc(ladder, func(l []program.Retention) bool { return slices.Equal(l, keep) })
}

// spend is a change of choice: resident chunks, layers of cache, units of
// prefetching, more (1) or fewer (-1) head rows, and parts of the updates that the
// device takes over.
type spend struct {
	residents int
	spare     int64
	prefetch  int
	head      int
	updates   int
}

// run divides memory in whole layers, then, where some but not all chunks stay, in
// parts of layers. It also divides the updates of the other chunks.
func (b *balancing) run() error {
	start := b.best
	if err := b.divideUpdates(); err != nil {
		return err
	}
	const fewest = 2 // one may be a norm, too small to move by itself
	if err := b.descend(max(len(start.Plan.Chunks)/4, fewest)); err != nil {
		return err
	}
	if n := b.best.choice.residents; n > 0 && n < len(b.best.Plan.Chunks) {
		if err := b.finer(); err != nil {
			return err
		}
	}
	if err := b.tuneUpdates(); err != nil {
		return err
	}
	if b.best == start {
		return nil
	}
	return b.keep(b.best)
}

// partsOfLayer is into how many chunks finer cuts a layer.
const partsOfLayer = 4

// finer cuts layers into several chunks and continues from there. It reverts if
// that does not help.
func (b *balancing) finer() error {
	whole, ch := b.best, b.best.choice
	ch.st.chunk = b.layerBytes() / b.graph.DType.Size() / partsOfLayer
	last := whole.Plan.Chunks[ch.residents-1].Last
	ch.residents = 0
	for _, c := range program.Layout(b.graph, ch.st.chunk) {
		if c.Last <= last {
			ch.residents++
		}
	}
	c, err := b.fit(ch, 1)
	if err != nil || c == nil {
		return err
	}
	if err := c.simulate(b.m); err != nil {
		return err
	}
	b.best = c
	if err := b.descend(partsOfLayer); err != nil {
		return err
	}
	if whole.Seconds() <= b.best.Seconds() {
		b.best = whole
	}
	return nil
}

// descend moves memory between uses, step chunks or layers at a time, then half as
// many, while that helps.
func (b *balancing) descend(step int) error {
	for ; step >= 1; step /= 2 {
		n, m := step, int64(step)
		moves := []spend{{residents: n}, {residents: -n}, {spare: m}, {spare: -m}, {residents: n, spare: -m}, {residents: -n, spare: m}}
		if step == 1 {
			moves = append([]spend{{}, {head: 1}, {head: -1}, {head: 2}, {head: -2}, {head: -3}}, append(moves, spend{prefetch: 1}, spend{prefetch: -1})...)
		}
		for _, d := range moves {
			for {
				better, err := b.move(d, step)
				if err != nil {
					return err
				}
				if !better || d == (spend{}) {
					break
				}
			}
		}
	}
	return nil
}

// move tries a change with the least recomputation that then fits, to within some
// rungs.
func (b *balancing) move(d spend, within int) (better bool, err error) {
	if b.tired() {
		return false, nil
	}
	ch := b.best.choice
	chunks := len(b.best.Plan.Chunks)
	ch.residents += d.residents
	ch.streamed += d.updates
	ch.st.spare += d.spare
	ch.st.prefetch += d.prefetch
	ch.st.headRows = b.resize(ch, d.head)
	cached := b.best.Plan.Cache > 0
	switch {
	case ch.residents < 0 || ch.residents > chunks || ch.st.spare < 0 || ch.st.spare > int64(chunks) || ch.st.prefetch < 1:
		return false, nil
	case ch.streamed < 0 || ch.streamed > updateParts || d.updates != 0 && b.req.Pins.Update != "":
		return false, nil
	case d.residents != 0 && ch.r.state == device.DeviceTier, (d.spare != 0 || d.prefetch != 0) && !cached:
		return false, nil
	case d.prefetch != 0 && b.req.Pins.Prefetch > 0, d.head != 0 && (b.req.Pins.HeadRows > 0 || ch.st.headRows == b.best.choice.st.headRows):
		return false, nil
	}
	c, err := b.fit(ch, within)
	if err != nil || c == nil {
		return false, err
	}
	if err := c.simulate(b.m); err != nil {
		return false, err
	}
	if c.Seconds() >= b.best.Seconds()*(1-1e-6) {
		return false, nil
	}
	b.best = c
	return true, nil
}

// resize returns the number of head rows that is |by| sizes larger or smaller. A single size
// may only move buffers and so hide that the next one is better.
func (b *balancing) resize(ch choice, by int) int {
	rows, seq, all := ch.st.headRows, b.graph.Seq, ch.b*b.graph.Seq
	for ; by < 0 && rows > 32; by++ {
		rows = b.req.shrink(rows)
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

// fit finds the least recomputation that fits, to within some rungs, or nil. It
// starts at the choice's rung and takes doubling steps, then bisects.
func (b *balancing) fit(ch choice, within int) (*Candidate, error) {
	levels := b.levels
	at := max(rung(levels, ch.keep), 0)
	no, yes := -1, len(levels) // does not fit, fits
	var fits *Candidate
	for step := within; yes-no > 1 && (fits == nil || yes-no > within); {
		ch.keep = levels[at]
		c, err := b.evaluate(ch)
		if err != nil {
			return nil, err
		}
		if c.Fits {
			yes, fits = at, c
		} else {
			no = at
		}
		switch {
		case yes == len(levels):
			at, step = min(at+step, len(levels)-1), 2*step
		case no == -1:
			at, step = max(at-step, 0), 2*step
		default:
			at = (no + yes) / 2
		}
	}
	return fits, nil
}
