package plan

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
)

// What the device's memory is spent on.
//
// Approach. A candidate of the enumeration has spent it on one thing after the
// other: on activations that need not be made again, then on chunks that stay.
// A byte can do more elsewhere: a chunk that stays saves its way up and down and
// the slower update (Elixir's J), a larger cache one transfer or gather (its I),
// an activation its arithmetic. Their prices depend on what overlaps with what,
// so none are computed: memory is moved from one to another, much first, then
// less, and the simulator says whether that helped. Recomputation takes up what
// the others leave.
//
//	residents  0 ......... chunks      per step: more or fewer of one,
//	cache      one unit .. all         or one for the other
//
// With the smallest steps, how early chunks come and how many logits are made at once
// change too.
//
// Example: 10 billion parameters on four GPUs of 40 GB. No recomputation leaves
// room for 30 of 50 chunks; full recomputation for all of them but two, and the
// step gets shorter by a fifth.
//
// Known weakness: a pattern search ends in a local optimum.

// How many candidates, of different micro-batches or residencies, are improved:
// more of small programs.
const (
	fewestKinds, mostKinds = 3, 8
	kindInstructions       = 10_000
)

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
	seen, most := map[kind]bool{}, min(max(kindInstructions/len(s.found[0].Program.Instrs), fewestKinds), mostKinds)
	for _, c := range slices.Clone(s.found) {
		ladders := s.retentions(c.choice.b, c.choice.group)
		at := slices.IndexFunc(ladders, func(l [][]program.Retention) bool { return rung(l, c.choice.keep) >= 0 })
		k := kind{c.choice.b, c.choice.group, c.choice.r, max(at, 0)}
		if seen[k] || len(seen) == most || s.hopeless(k.b, k.r) {
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

// worthwhile is the share of a step that updates on the host must save for chunks
// to be sent there without need.
const worthwhile = 5e-3

// released is a candidate whose chunks may leave the device. Where there is room for
// everything, no other residency was tried; but then it is also one with the optimizer
// on the host of which all chunks stay, and some of them may be better off there: host
// cores update them while the device updates the others.
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
	return c // undivided, every rank's host would do all of the work
}

// balancing is the search from one candidate on.
type balancing struct {
	*search
	best   *Candidate
	levels [][]program.Retention // of activations, from least work to least memory
}

// rung is where activations are on a ladder, or -1.
func rung(ladder [][]program.Retention, keep []program.Retention) int {
	return slices.IndexFunc(ladder, func(l []program.Retention) bool { return slices.Equal(l, keep) })
}

// spend is a change: chunks that stay, layers of cache, units of prefetching,
// whether the logits are made in larger (1) or smaller (-1) pieces, and parts of the
// updates that the device does for the host.
type spend struct {
	residents int
	spare     int64
	prefetch  int
	head      int
	updates   int
}

// run divides memory in whole layers, then in parts of them where only some
// chunks stay; and the updates of what does not.
func (b *balancing) run() error {
	start := b.best
	if err := b.divideUpdates(); err != nil {
		return err
	}
	const fewest = 2 // one may be a norm, which is not worth a trip of its own
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

// partsOfLayer is how finely layers are cut.
const partsOfLayer = 4

// finer cuts layers into several chunks and goes on from there.
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

// descend moves memory about, by so many chunks or layers of cache and then by
// fewer, for as long as that helps.
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

// move tries a change with the least recomputation that it leaves room for, to
// within some levels.
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

// resize is so many sizes larger or smaller pieces of the batch whose logits are made
// at once. One size may change nothing but where buffers lie, and so hide that the next
// one is better.
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

// fit finds the least recomputation that fits, to within some levels, from where
// the choice is, in steps that double and then by bisection; nil if nothing fits.
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
