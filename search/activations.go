package search

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Which activations to keep, swap or recompute between the forward and the backward pass.
//
// Approach. The link carries parameters too, host and disk have limits, and the
// time that a copy can hide behind depends on everything else. So the simulator,
// not a formula, judges every choice. Starting from the fastest candidates that
// only recompute:
//
//	patterns   all layers but the last few alike: cheap operators are recomputed;
//	           input, attention and a share of the products are swapped. MEMO's
//	           closed form is among them. For each pattern, as many of the last
//	           layers as fit keep everything.
//	moves      change the policy of one activation class in a run of layers;
//	           runs shrink from all layers to one. A move is accepted if the step
//	           gets faster, or needs less memory in the same time.
//
// Example: with long sequences and a fast link, everything but the norms is swapped. At half the link's speed,
// every second layer recomputes its products.
//
// Known weakness: moves are tried one at a time, up to a number that depends on the
// size of the program.

// refineActivations refines the activation policies of the fastest candidates, one of each
// kind: patterns for all of them, moves for the best (polish).
func refineActivations(ctx context.Context, p *problem, found shortlist) (shortlist, error) {
	if !p.refinesActivations() {
		return found, nil
	}
	if slices.ContainsFunc(found, func(c *Candidate) bool { return c.choice.deferred }) { // later stages need not defer any
		p.told.begin(toRefine, toImprove+afterwards(p))
	}
	var list []*Candidate
	best, kinds := found, found.ofKinds(mostKinds)
	shortFirst(kinds, itself, (*Candidate).Seconds)
	_, err := tryInTurn(ctx, p, len(kinds), func(ctx context.Context, p *problem, i int) {
		_, _ = tryPatterns(ctx, p, best, kinds[i])
	}, func(i int) (tired bool, err error) {
		if p.told.spent(3) {
			return true, nil
		}
		better, err := tryPatterns(ctx, p, found, kinds[i])
		if err == nil && better != kinds[i] {
			found = found.add(better)
		}
		list = append(list, better)
		return false, err
	})
	if err != nil {
		return nil, err
	}
	return polish(ctx, p, found, list)
}

// refinesActivations reports whether the user leaves each layer's activation policy to the search, and there is a
// choice.
func (p *problem) refinesActivations() bool {
	return !p.req.Pins.setsActivations() && len(p.swapTiers()) > 0
}

// refinement searches for better activation policies, starting from one candidate.
type refinement struct {
	p     *problem
	best  *Candidate
	left  int     // evaluations
	floor float64 // lower bound in seconds on the step, whatever the activation policy
}

// steps bounds the evaluations of a refinement, instructions the instructions that it lowers, and exchanged
// those that its last part (exchangeResidents) lowers. That part matters where a layer is a large part of the device.
const steps, instructions, exchanged = 100, 1_000_000, 50_000

// newRefinement begins a refinement of a candidate.
func newRefinement(p *problem, base *Candidate) *refinement {
	return &refinement{p, base, min(steps, instructions/len(base.Program.Instrs)), floor(base)}
}

// floor returns the longest time, in seconds, for which any stream is busy with work that does not depend on
// the activation policy.
func floor(c *Candidate) float64 {
	var busy [device.NumStreams]float64
	for i := range c.Program.Instrs {
		in := &c.Program.Instrs[i]
		if in.Key.Dir != program.Recompute && (in.Op != graph.Copy || c.Program.Buffers[in.Args[graph.CopyDst].Buf].Class != program.ClassActivations) {
			busy[in.Stream] += c.times(in) * (c.spans[0][i].End - c.spans[0][i].Start)
		}
	}
	return slices.Max(busy[:])
}

// tryPatterns returns a candidate with the best of the patterns.
func tryPatterns(ctx context.Context, p *problem, found shortlist, base *Candidate) (*Candidate, error) {
	r := newRefinement(p, base)
	if r.needless(found) || base.promise() > behind*found[0].Seconds() {
		return base, nil
	}
	p.told.say(fmt.Sprintf("%s: which activations wait on the host in %s", planning, base.Label), found)
	err := r.patterns(ctx)
	return r.best, err
}

// behind is how far, as a ratio of times, a candidate may be behind the fastest without its recomputation for other
// activation policies to be worth trying: they save that, and memory for other uses.
const behind = 1.15

// promise returns how many seconds a candidate's step would take without what it recomputes.
func (c *Candidate) promise() float64 { return c.Seconds() * (1 - c.Repeated()) }

// needless reports whether no other activation policy can make the candidate the fastest.
func (r *refinement) needless(found shortlist) bool {
	return r.done() || found.beats(r.floor) || r.best.roomy()
}

// roomy reports whether all activations are kept and nothing else could use their
// memory.
func (c *Candidate) roomy() bool {
	return c.choice.r.state == device.DeviceTier && !slices.ContainsFunc(c.Plan.Activations, func(r plan.Retention) bool { return r != plan.Recomputed("none") })
}

// done reports whether nothing can be gained or the effort is spent.
func (r *refinement) done() bool {
	return r.left <= 0 || r.p.told.exhausted() || r.best.Seconds() <= r.floor*(1+2e-3)
}

// consider evaluates a choice and takes it if it fits and is faster, or as fast
// with less memory.
func (r *refinement) consider(ctx context.Context, ch choice) (taken bool, err error) {
	r.left--
	c, err := r.p.evaluate(ctx, ch, everyTier...)
	if err != nil || !c.Fits {
		return false, err
	}
	return r.takeIfBetter(c)
}

// takeIfBetter takes a candidate that is faster, or as fast with less memory.
func (r *refinement) takeIfBetter(c *Candidate) (bool, error) {
	if err := c.simulate(r.p.machine); err != nil {
		return false, err
	}
	const same = 1e-9
	was, is := r.best.Seconds(), c.Seconds()
	if is < was*(1-same) || is <= was && c.Program.Height[device.DeviceTier] < r.best.Program.Height[device.DeviceTier] {
		r.best = c
		return true, nil
	}
	return false, nil
}

// firstThatFits is that of the problem, with what it evaluates counted.
func (r *refinement) firstThatFits(ctx context.Context, n int, at func(int) choice) (*Candidate, error) {
	was := r.p.told.evaluated
	fit, err := r.p.firstThatFits(ctx, r.best, n, at)
	r.left -= r.p.told.evaluated - was
	return fit, err
}

// patterns tries the same policy for all layers but the last ones, which keep
// everything.
func (r *refinement) patterns(ctx context.Context) error {
	base := r.best.choice
	var list []plan.Retention
	for _, t := range r.p.swapTiers() {
		list = append(list, r.patternsOn(t)...)
	}
	for len(list) > 0 {
		now, all := *r, list
		i, err := tryInTurn(ctx, r.p, len(all), func(ctx context.Context, p *problem, i int) {
			own := now
			own.p = p
			_, _ = own.fitPattern(ctx, base, all[i])
		}, func(i int) (end bool, err error) {
			fit, err := r.fitPattern(ctx, base, list[i])
			if err != nil || fit == nil {
				return false, err
			}
			if end, err = r.takeIfBetter(fit); err != nil {
				return false, err
			}
			if !slices.ContainsFunc(fit.choice.keep, func(keep plan.Retention) bool { return keep != plan.Recomputed("none") }) {
				list = list[:i+1] // everything is kept, whatever the pattern
			}
			return end || i == len(list)-1, nil
		})
		if err != nil {
			return err
		}
		list = list[min(i+1, len(list)):]
	}
	return nil
}

// fitPattern returns the candidate in which as many of the last layers as fit keep everything, and the others what a policy
// says; nil if none fits.
func (r *refinement) fitPattern(ctx context.Context, base choice, policy plan.Retention) (*Candidate, error) {
	layers := r.p.graph.Model.Layers
	return r.firstThatFits(ctx, layers+1, func(i int) choice {
		ch := base
		ch.keep = r.p.keepLast(policy, layers-i)
		return ch
	})
}

// patternsOn returns the policies to try with a swap tier.
func (r *refinement) patternsOn(t device.Tier) (list []plan.Retention) {
	all := plan.Fate{Tier: t, Share: 1}
	if t == device.DiskTier { // what the host has room for need not wear the disk
		list = append(list, plan.Retention{plan.Fate{Tier: device.HostTier, Share: 1}, all, plan.Remade, plan.Remade})
	}
	for _, share := range []float64{1, 0.5, 0} {
		part := plan.Fate{Tier: t, Share: share}
		if share == 0 {
			part = plan.Remade
		}
		list = append(list,
			plan.Retention{all, all, part, plan.Remade},
			plan.Retention{all, plan.Remade, part, plan.Remade},
			plan.Retention{plan.Kept, all, part, plan.Remade})
	}
	return append(list, plan.SwapOf(t, 1), r.p.memoPolicy(t, r.best.choice), productsPolicy(r.p, t, r.best.choice))
}

// tryMoves tries other policies for one activation class in a run of so many layers, and what the memory that this frees can
// serve for.
func (r *refinement) tryMoves(ctx context.Context, size int) error {
	if r.done() || !r.p.refinesActivations() {
		return nil
	}
	if err := r.tryRuns(ctx, size); err != nil || r.done() {
		return err
	}
	if err := r.trySlots(ctx); err != nil {
		return err
	}
	return r.addResidents(ctx)
}

// tryRuns tries other policies for each activation class in each run of so many layers.
func (r *refinement) tryRuns(ctx context.Context, size int) error {
	const acts = int(plan.NumActs)
	runs := (r.p.graph.Model.Layers + size - 1) / size
	for next := 0; next < runs*acts; {
		now, first := *r, next
		i, err := tryInTurn(ctx, r.p, runs*acts-first, func(ctx context.Context, p *problem, i int) {
			own := now
			own.p = p
			_, _ = own.tryRun(ctx, size, (first+i)/acts, plan.Act((first+i)%acts))
		}, func(i int) (taken bool, err error) {
			return r.tryRun(ctx, size, (first+i)/acts, plan.Act((first+i)%acts))
		})
		if err != nil {
			return err
		}
		next += i + 1
	}
	return nil
}

// tryRun tries other policies for an activation class in a run of layers, and reports whether it took one.
func (r *refinement) tryRun(ctx context.Context, size, run int, a plan.Act) (taken bool, err error) {
	lo := run * size
	for _, f := range r.fates(a, r.best.choice.keep[lo][a]) {
		if r.done() {
			return taken, nil
		}
		ch := r.best.choice
		ch.keep = slices.Clone(ch.keep)
		for l := lo; l < min(lo+size, len(ch.keep)); l++ {
			ch.keep[l][a] = f
		}
		better, err := r.consider(ctx, ch)
		if err != nil {
			return taken, err
		}
		taken = taken || better
	}
	return taken, nil
}

// exchangeResidents trades one resident chunk, more or less, for a change of one activation
// class in one layer. Alone, neither change fits or helps.
func (r *refinement) exchangeResidents(ctx context.Context) error {
	if r.p.req.Pins.placesChunks() || r.best.choice.r.state == device.DeviceTier {
		return nil
	}
	r.left = min(r.left, exchanged/len(r.best.Program.Instrs))
	for better := true; better; {
		better = false
		for _, d := range []int{1, -1} {
			taken, err := r.tradeResidents(ctx, d)
			if err != nil {
				return err
			}
			better = better || taken
		}
	}
	return nil
}

// tradeResidents makes that many more chunks resident, and tries all changes of one class in one layer.
func (r *refinement) tradeResidents(ctx context.Context, chunks int) (taken bool, err error) {
	base := r.best
	ch := base.choice
	if ch.residents += chunks; ch.residents < 0 || ch.residents > len(base.Plan.Chunks) {
		return false, nil
	}
	now := *r
	const acts = int(plan.NumActs)
	_, err = tryInTurn(ctx, r.p, len(ch.keep)*acts, func(ctx context.Context, p *problem, i int) {
		own := now
		own.p = p
		_, _ = own.tradeFor(ctx, ch, i/acts, plan.Act(i%acts))
	}, func(i int) (done bool, err error) {
		better, err := r.tradeFor(ctx, ch, i/acts, plan.Act(i%acts))
		taken = taken || better
		return r.done(), err
	})
	return taken, err
}

// tradeFor tries all changes of a class in a layer of a choice.
func (r *refinement) tradeFor(ctx context.Context, base choice, l int, a plan.Act) (taken bool, err error) {
	for _, f := range r.fates(a, base.keep[l][a]) {
		if r.done() {
			return taken, nil
		}
		ch := base
		ch.keep = slices.Clone(base.keep)
		ch.keep[l][a] = f
		better, err := r.consider(ctx, ch)
		if err != nil {
			return taken, err
		}
		taken = taken || better
	}
	return taken, nil
}

// trySlots tries fewer staging slots, which need less memory, and more, which give
// copies more time.
func (r *refinement) trySlots(ctx context.Context) error {
	for _, n := range []int{r.best.Plan.Slots - 1, r.best.Plan.Slots + 1} {
		ch := r.best.choice
		if ch.slots = n; n < 1 || r.p.req.Pins.Slots > 0 || r.done() {
			continue
		}
		if _, err := r.consider(ctx, ch); err != nil {
			return err
		}
	}
	return nil
}

// addResidents keeps as many more chunks on the device as fit in the memory that the moves freed.
func (r *refinement) addResidents(ctx context.Context) error {
	base := r.best.choice
	if r.p.req.Pins.placesChunks() || base.r.state == device.DeviceTier || r.done() {
		return nil
	}
	chunks := len(r.best.Plan.Chunks)
	fit, err := r.firstThatFits(ctx, chunks-base.residents, func(i int) choice {
		ch := base
		ch.residents = chunks - i
		return ch
	})
	if err != nil || fit == nil {
		return err
	}
	_, err = r.takeIfBetter(fit)
	return err
}

// fates returns the alternatives to the present policy of an activation class.
func (r *refinement) fates(a plan.Act, now plan.Fate) []plan.Fate {
	set := map[plan.Fate]bool{plan.Kept: true, plan.Remade: a != plan.InputAct}
	for _, t := range r.p.swapTiers() {
		set[plan.Fate{Tier: t, Share: 1}] = true
		if a != plan.LinearAct && a != plan.LightAct {
			continue
		}
		for _, step := range []float64{-0.25, -0.0625, 0.0625, 0.25} {
			if share := now.Share + step; now.Tier == t && share > 0 && share < 1 {
				set[plan.Fate{Tier: t, Share: share}] = true
			}
		}
	}
	set[now] = false
	list := slices.Collect(maps.Keys(set))
	list = slices.DeleteFunc(list, func(f plan.Fate) bool { return !set[f] })
	slices.SortFunc(list, func(a, b plan.Fate) int { return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(b.Share, a.Share)) })
	return list
}
