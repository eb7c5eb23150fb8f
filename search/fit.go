package search

import (
	"context"
	"sort"

	"github.com/athanor-llm/athanor/device"
)

// The first of many choices that fits.
//
// Approach. Choices are sorted by what they need of a tier's memory, most first. Each probe is lowered, which is what
// a search spends its time on, and tells by how many bytes it exceeds the tier or stays below. How many bytes lie
// between two choices can be reckoned without lowering: activations kept, chunks resident, cache. So the next probe
// is where the reckoning says that the border is:
//
//	bytes   |\  probe: 300 MB too much
//	        | \                           reckoned: 5 rungs further, 310 MB less
//	capacity|--\---------------------     probe: fits by 8 MB; the rung before: does not
//	        |   \ ...
//
// A few probes are usual where bisection takes one for each halving. Where the reckoning misleads, bisection goes on.
//
// Known weakness: as with bisection, choices that are not sorted as they should be hide others that fit.

// border looks for the first of n choices that fits in some tiers.
type border struct {
	p      *problem
	tiers  []device.Tier
	n      int
	at     func(int) choice
	within int // how far the result may be from the first that fits
}

// everyTier is for borders between what fits and what does not.
var everyTier = []device.Tier{device.DeviceTier, device.HostTier, device.DiskTier}

// find returns the first choice that fits, if one does, with its candidate. It begins with the given one.
func (b *border) find(ctx context.Context, i int) (first int, found *Candidate, err error) {
	no, yes := -1, b.n // does not fit, fits
	const trusted = 4  // probes for which the reckoning is believed
	for probes, step := 0, b.within; yes-no > 1 && (found == nil || yes-no > b.within); probes++ {
		c, err := b.p.evaluate(ctx, b.at(i), b.tiers...)
		if err != nil {
			return 0, nil, err
		}
		lacking, fits := b.lacking(c)
		if fits {
			yes, found = i, c
		} else if no = i; b.vain(lacking, i) {
			break
		}
		next := b.reckon(lacking, i, c)
		switch {
		case yes == b.n:
			next, step = max(next, no+step), 2*step
		case probes >= trusted && no >= 0:
			next = (no + yes) / 2
		case next >= yes:
			next = yes - b.within
		}
		i = min(max(next, no+1), yes-1)
	}
	return yes, found, nil
}

// lacking returns the first tier that a candidate exceeds, or the first of the border's tiers and true if it exceeds
// none of them.
func (b *border) lacking(c *Candidate) (device.Tier, bool) {
	for _, t := range b.tiers {
		if c.excessBytes(t) > 0 {
			return t, false
		}
	}
	return b.tiers[0], c.Fits || len(b.tiers) < len(everyTier)
}

// reckon returns the first choice that fits in a tier according to a candidate's bytes and what lies between it and
// others.
func (b *border) reckon(t device.Tier, i int, c *Candidate) int {
	over, here := c.excessBytes(t), b.p.reckonBytes(b.at(i), t)
	less := func(j int) bool { return here-b.p.reckonBytes(b.at(j), t) >= over }
	if over > 0 {
		return i + 1 + sort.Search(b.n-i-1, func(k int) bool { return less(i + 1 + k) })
	}
	return sort.Search(i, less)
}

// near returns the first choice that fits in a tier according to the bytes of a candidate that need not be one of them.
func (b *border) near(t device.Tier, c *Candidate) int {
	over, here := c.excessBytes(t), b.p.reckonBytes(c.choice, t)
	return sort.Search(b.n, func(j int) bool { return here-b.p.reckonBytes(b.at(j), t) >= over })
}

// vain reports whether none of the choices after one that exceeds a tier needs less of it.
func (b *border) vain(t device.Tier, i int) bool {
	return b.p.reckonBytes(b.at(b.n-1), t) >= b.p.reckonBytes(b.at(i), t)
}

// excessBytes returns by how many bytes a tier is exceeded at least, or the negative number of bytes that are free. Where
// device and host are the same memory, what both exceed counts.
func (c *Candidate) excessBytes(t device.Tier) int64 {
	need := &c.Program.Height
	if c.Fits {
		need = &c.Program.Bound // addresses that fit need not be the lowest
	}
	over := need[t] - c.Program.Capacity[t]
	if c.shared > 0 && t != device.DiskTier {
		over = max(over, c.bytesTogether()-c.shared)
	}
	return over
}

// reckonBytes returns about how many bytes a choice needs in a tier. Only differences between choices count.
func (p *problem) reckonBytes(ch choice, t device.Tier) int64 {
	pl, _, _ := p.plan(ch)
	var sum int64
	if t == device.DeviceTier {
		sum = pl.Cache
	}
	weight, grad, state := p.bytesPerElement(ch.r)
	for _, c := range pl.Chunks {
		n := float64(stored(p.graph, c))
		if c.Weights == t {
			sum += int64(n * weight)
		}
		if p.graph.Params[c.First].Frozen {
			continue
		}
		if c.Grads == t {
			sum += int64(n * grad)
		}
		if c.State == t {
			sum += int64(n * state)
		}
	}
	return sum + p.waitingBytes(ch, t)
}

// waitingBytes returns the bytes of the activations that wait for the backward pass in a tier.
func (p *problem) waitingBytes(ch choice, t device.Tier) (sum int64) {
	for l, r := range ch.keep {
		for a, bytes := range p.needs.saved[l] {
			if r[a].Tier == t {
				sum += int64(r[a].Share * float64(bytes*int64(ch.b*p.graph.Seq)))
			}
		}
	}
	return sum * int64(ch.group)
}
