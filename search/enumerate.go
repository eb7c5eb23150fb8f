package search

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/athanor-llm/athanor/device"
)

// Approach. The decisions are nested, the costliest outermost:
//
//	micro-batch x grouping x placement   enumerated
//	  recomputation                      the least that fits (fit.go), of a
//	                                     list from all kept to all recomputed
//	  chunk size, blocks, head rows      a few values, by decreasing memory
//	  chunks that may stay on the device as many as fit (fit.go)
//
// Keeping more takes more memory and less time, so for each choice of the outer
// decisions the least recomputation that fits is the best. Swapping to the host is
// then considered for the fastest of these, see activations.go.
//
// Example: a model whose states are four times the device's memory. Placement "all on the device" fails its
// memory bound at once; "states on the host" fits with full recomputation; "weights and gradients too" fits
// with none. The simulator says which is faster.
//
// Known weakness: only a prefix of the chunks stays on the device. Apart from that and from who updates them,
// all chunks are treated alike; uneven choices that the packing would reward are not seen.

// enumeration tries outer decisions for as long as the effort lasts.
type enumeration struct {
	p       *problem
	of      aim
	found   shortlist
	reached map[arrangement]float64 // best times
	short   bool                    // steps of many micro-batches are shortened, see short.go
	again   bool                    // the second time: only those whose steps could be shortened
	heads   bool                    // are exchanged by ranks that share sequences
}

func newEnumeration(p *problem, found shortlist, of aim) *enumeration {
	return &enumeration{p: p, of: of, found: found, reached: map[arrangement]float64{}}
}

// tryAll tries all outer decisions, until the effort is spent.
func (e *enumeration) tryAll(ctx context.Context) error {
	e.p.told.begin(toEnumerate, len(improvements)*toImprove+afterwards(e.p))
	var list []choice
	for kind := range 2 { // micro-batches one at a time first: the cost of judging these does not grow with the batch
		for _, b := range e.p.microBatches() {
			groups := e.p.groups(b)
			if kind >= len(groups) {
				continue
			}
			can := shortens(e.p.batch/b, groups[kind])
			if e.again && !can {
				continue
			}
			list = append(list, choice{b: b, group: groups[kind], tables: e.p.tables, short: e.short && can, heads: e.heads})
		}
	}
	return e.tryPlacements(ctx, list...)
}

// slight is the share of the device's memory that a placement must save, compared with a nearer one that fits,
// to be tried too: what less memory can buy is not worth the copies.
const slight = 0.02

// tryPlacements tries placements, near tiers first, for each of some choices of micro-batches. If everything fits on the
// device without recomputation, farther tiers only cost time, except for updates (see releasePlacements). The disk is
// tried only if the host cannot hold everything.
func (e *enumeration) tryPlacements(ctx context.Context, choices ...choice) error {
	n := len(e.p.placements)
	s := survey{e: e}
	for next := 0; next < n*len(choices); {
		now, first := s.copied(), next
		i, err := tryInTurn(ctx, e.p, n*len(choices)-first, func(ctx context.Context, p *problem, i int) {
			own := now.copied()
			own.e.p = p
			_, _ = own.try(ctx, choices, first+i)
		}, func(i int) (found bool, err error) {
			return s.try(ctx, choices, first+i)
		})
		if err != nil {
			return err
		}
		next += i + 1
	}
	return nil
}

// survey is what is known of the placements of a choice of micro-batches.
type survey struct {
	e       *enumeration
	of      int // choice
	ladders []ladder
	fit     []residency
	roomy   bool // everything fits on the device, and nothing is recomputed
	done    bool // one is enough
}

// copied returns a copy that does not change with the survey and its enumeration.
func (s *survey) copied() survey {
	own, e := *s, *s.e
	e.reached = maps.Clone(e.reached)
	own.e, own.fit = &e, slices.Clone(s.fit)
	return own
}

// try tries the next placement, of the item-th pair of a choice and a placement, and reports whether it fits.
func (s *survey) try(ctx context.Context, choices []choice, item int) (fits bool, err error) {
	e, n := s.e, len(s.e.p.placements)
	if s.ladders == nil || s.of != item/n {
		*s = survey{e: e, of: item / n, ladders: e.p.ladders(choices[item/n])}
	}
	ch := choices[item/n]
	ch.r = e.p.placements[item%n]
	if s.done || e.tired() || s.needless(ch) {
		return false, nil
	}
	c, err := e.tryLadders(ctx, ch, s.ladders)
	if err != nil || c == nil {
		return false, err
	}
	f := ch.arrangement()
	e.reached[f] = min(cmp.Or(e.reached[f], c.Seconds()), c.Seconds())
	s.fit = append(s.fit, ch.r)
	s.done = e.of != fastestPlan
	s.roomy = s.roomy || ch.r.state == device.DeviceTier && c.Plan.Activations[0] == s.ladders[0][0][0]
	return true, nil
}

// needless reports whether a placement need not be tried after the others of the survey.
func (s *survey) needless(ch choice) bool {
	e, r, p := s.e, ch.r, s.e.p
	if s.roomy && r.state != device.DeviceTier || r.state == device.DiskTier && len(s.fit) > 0 && p.req.Pins.State == nil {
		return true
	}
	if e.needless(ch) || !p.req.Pins.allow(r) || p.hopeless(ch.b, r, e.found) {
		return true
	}
	if slices.ContainsFunc(s.fit, func(than residency) bool {
		return r.farther(than) && p.bytesPlaced(than, device.DeviceTier)-p.bytesPlaced(r, device.DeviceTier) < slight*float64(p.machine.Capacity[device.DeviceTier])
	}) {
		return true
	}
	f, best := ch.arrangement(), e.found.fastest()
	return best != nil && e.reached[f] > f.hopelessness()*best.Seconds()
}

// tired reports whether there is a plan and the effort is spent. A sketch spends some more without one, not all.
func (e *enumeration) tired() bool {
	const patience = 4
	if len(e.found) == 0 {
		return e.p.req.Sketch && e.p.told.overdue(patience)
	}
	return e.p.told.exhausted()
}

// needless reports whether a placement can win nothing with these micro-batches.
func (e *enumeration) needless(ch choice) bool {
	pins := &e.p.req.Pins
	switch {
	case ch.r.shard == "state" && ch.r.state != device.DeviceTier && ch.group*ch.b == e.p.batch && pins.MicroBatch == 0:
		return true // gradients are complete after one visit, and leave the device anyway, so sharding them costs nothing
	case sameAsNearer(e.p, ch):
		return true // divideUpdates tries the farther one, too
	case ch.r.state == device.DeviceTier && ch.group > 1 && e.p.ranks == 1 && pins.Group == 0 && e.p.graph.Model.Shares == 0:
		return true // nothing is sent that several micro-batches could share
	}
	return false
}

// arrangement is what candidates with micro-batches of different sizes have in common.
type arrangement struct {
	residency
	together bool // all micro-batches go through a layer before the next
}

// arrangement returns a choice's.
func (ch choice) arrangement() arrangement { return arrangement{ch.r, ch.group > 1} }

// hopelessness bounds how far, as a ratio of times, an arrangement may trail with larger micro-batches and still be
// tried with smaller ones. Smaller ones can save only recomputation, at most a third of a step, and hardly any
// of it if all of them go through a layer together, since their activations then wait together too.
func (f arrangement) hopelessness() float64 {
	if f.together {
		return 1.1
	}
	return 1.5
}

// tryLadders looks for the best inner decisions for given outer ones; nil if none fits.
func (e *enumeration) tryLadders(ctx context.Context, ch choice, ladders []ladder) (*Candidate, error) {
	e.p.told.say(fmt.Sprintf("%s: micro-batch %d, group %d, %s", planning, ch.b, ch.group, ch.r.label), e.found)
	var best *Candidate
	for i, l := range ladders {
		ch.ladder = i
		c, err := e.climbLadder(ctx, ch, l)
		if err != nil {
			return nil, err
		}
		if best == nil || c != nil && c.Seconds() < best.Seconds() {
			best = c
		}
		if best != nil && (e.of != fastestPlan || ch.r.state == device.DeviceTier && best.Plan.Activations[0] == l[0][0]) {
			break
		}
	}
	return best, nil
}

// climbLadder returns the candidate with the first activation policy of a ladder that
// fits, in the first style where one does; nil if none fits.
func (e *enumeration) climbLadder(ctx context.Context, ch choice, l ladder) (*Candidate, error) {
	styles := e.p.styles(e.of, ch.b, ch.r)
	if len(e.found) == 0 { // memory may be so short that no style helps: ask the most frugal one first
		ch.st = styles[len(styles)-1]
		if fit, err := e.firstRung(ctx, ch, l); err != nil || fit == nil {
			return nil, err
		}
	}
	for _, ch.st = range styles {
		fit, err := e.firstRung(ctx, ch, l)
		if err != nil {
			return nil, err
		}
		if fit == nil {
			continue
		}
		return fit, e.keep(ctx, fit) // styles that need less memory are slower
	}
	return nil, nil
}

// firstRung returns the candidate with the first activation policy of a ladder that fits, nil if none does. Where the
// host is too small, chunks stay on the device, for which more activations must leave it. So both are found in turn.
func (e *enumeration) firstRung(ctx context.Context, ch choice, l ladder) (*Candidate, error) {
	const turns = 6
	for range turns {
		if !e.mayHold(ch, l) {
			return nil, nil
		}
		held, err := e.p.firstThatDeviceHolds(ctx, e.of, nil, len(l), func(i int) choice { ch.keep = l[i]; return ch })
		if err != nil || held == nil || held.Fits {
			return held, err
		}
		residents, err := e.p.residentsToFitHost(ctx, held)
		if err != nil || residents <= ch.residents {
			return nil, err
		}
		ch.residents = residents
	}
	return nil, nil
}

// keep adds a candidate to what was found and, if that can be faster, one with more chunks on the device.
func (e *enumeration) keep(ctx context.Context, c *Candidate) error {
	if e.p.untimed {
		e.found = shortlist{c}
		return nil
	}
	if err := c.simulate(e.p.machine); err != nil {
		return err
	}
	e.found = e.found.add(c)
	if c.choice.r.state == device.DeviceTier || e.of != fastestPlan || e.p.req.Pins.placesChunks() {
		return nil
	}
	more, err := e.p.mostResidents(ctx, c)
	if err != nil || more == nil {
		return err
	}
	e.found = e.found.add(more)
	return nil
}

// residentsToFitHost returns how many of a candidate's chunks must be on the device for the others to fit on the host;
// 0 if it is not the host that is short of memory, or if not even all are enough.
func (p *problem) residentsToFitHost(ctx context.Context, c *Candidate) (int, error) {
	now, all := c.choice.residents, len(c.Plan.Chunks)
	if p.req.Pins.placesChunks() || c.choice.r.state == device.DeviceTier || now == all || !c.Program.ExceedsCapacity(device.HostTier) {
		return 0, nil
	}
	b := border{p, []device.Tier{device.HostTier}, all - now + 1, func(i int) choice {
		ch := c.choice
		ch.residents = now + i
		return ch
	}, 1}
	i, _, err := b.find(ctx, min(b.reckon(device.HostTier, 0, c), b.n-1))
	if err != nil || i == b.n {
		return 0, err
	}
	return now + i, nil
}

// firstThatFits finds the first of n choices that fits; nil if none does. Choices must be sorted by decreasing need
// of the device's memory, and like a candidate's.
func (p *problem) firstThatFits(ctx context.Context, like *Candidate, n int, at func(int) choice) (*Candidate, error) {
	low := 0
	for low < n && !mayFit(p, at(low)) {
		low++
	}
	for n > low && !mayFit(p, at(n-1)) {
		n--
	}
	if low == n {
		return nil, nil
	}
	held, err := p.firstThatDeviceHolds(ctx, fastestPlan, like, n-low, func(i int) choice { return at(low + i) })
	if err != nil || held == nil || !held.Fits {
		return nil, err
	}
	return held, nil
}

// firstThatDeviceHolds finds the first of n choices that fits. If none does, it returns the one that the device holds
// and that exceeds other tiers least; nil if the device holds none. What a candidate needs that the choices are like (nil:
// none is known) says where to begin.
func (p *problem) firstThatDeviceHolds(ctx context.Context, of aim, like *Candidate, n int, at func(int) choice) (*Candidate, error) {
	if of != fastestPlan {
		if last, err := p.evaluate(ctx, at(n-1), everyTier...); err != nil || last.Fits {
			return last, err
		}
	}
	b := border{p, []device.Tier{device.DeviceTier}, n, at, 1}
	start := n - 1 // it needs least of the device's memory, though it may need more of other tiers
	if like != nil {
		start = min(b.near(device.DeviceTier, like), n-1)
	}
	i, held, err := b.find(ctx, start)
	if err != nil || held == nil || held.Fits {
		return held, err
	}
	rest := border{p, everyTier, n - i, func(k int) choice { return at(i + k) }, 1}
	if _, fit, err := rest.find(ctx, 0); err != nil || fit != nil { // later ones may swap to farther tiers
		return fit, err
	}
	if last, err := p.evaluate(ctx, at(n-1)); err != nil || last.Program.Height[device.HostTier] < held.Program.Height[device.HostTier] {
		return last, err
	}
	return held, nil
}

// mostResidents returns, simulated, a candidate's plan with as many more chunks as fit wholly on the device, starting
// with the first, while the others follow the base's placement; nil if no more fit.
func (p *problem) mostResidents(ctx context.Context, base *Candidate) (*Candidate, error) {
	chunks, now := len(base.Plan.Chunks), base.choice.residents
	if now >= chunks {
		return nil, nil
	}
	fit, err := p.firstThatFits(ctx, base, chunks-now, func(i int) choice {
		ch := base.choice
		ch.residents = chunks - i
		return ch
	})
	if err != nil || fit == nil {
		return nil, err
	}
	return fit, fit.simulate(p.machine)
}
