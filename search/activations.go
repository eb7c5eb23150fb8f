package search

import (
	"cmp"
	"fmt"
	"maps"
	"math"
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

// MemoRule is the policy of MEMO (arXiv 2407.12117, section 4.1): input and attention are swapped to the host,
// and so is a share of the rest, the same in all layers, such that the copies hide behind a layer's forward
// pass and fit on the host. The last two layers keep everything.
const MemoRule = "memo-paper"

// ActivationRules lists the rules that can decide about activations in place of the
// search, which then decides everything else. Policies for whole plans are in
// package policy.
func ActivationRules() []string { return []string{MemoRule} }

// MemoKept is how many of the last layers keep everything.
const MemoKept = 2

// retentions lists activation policies. The first ladder goes from least work to
// least memory: one choice after the other, and within a choice layer by layer from
// the first, since its activations wait longest. The others are MEMO's policy and
// full swapping, included so that the plan is never slower than these.
func (s *search) retentions(b, group int) [][][]plan.Retention {
	layers := s.graph.Model.Layers
	var policies [][][]plan.Retention
	if len(s.swapTiers()) > 0 {
		for _, r := range []plan.Retention{s.memo(device.HostTier, b, group), plan.SwapOf(device.HostTier, 1)} {
			policies = append(policies, [][]plan.Retention{s.lastKept(r, MemoKept)})
		}
	}
	if s.req.Pins.Policy == MemoRule {
		return policies[:1]
	}
	var choices []plan.Retention
	for _, name := range plan.Recomputations() {
		if s.req.Pins.Recompute == "" || s.req.Pins.Recompute == name {
			choices = append(choices, plan.Recomputed(name))
		}
	}
	if s.req.Pins.Recompute == "" {
		for _, t := range s.swapTiers() {
			choices = append(choices, plan.Retention{{Tier: t, Share: 1}, plan.Remade, plan.Remade, plan.Remade})
		}
	}
	list := levels(layers, choices)
	if s.req.Pins.Recompute != "" || len(s.req.Pins.Activations) > 0 {
		policies = nil
	}
	return append([][][]plan.Retention{list}, policies...)
}

// swapTiers returns the tiers that activations may be swapped to, nearest first.
// The disk is included only if the host cannot hold everything.
func (s *search) swapTiers() (list []device.Tier) {
	if s.m.Capacity[device.HostTier] > 0 {
		list = append(list, device.HostTier)
	}
	if len(list) > 0 && s.m.Capacity[device.DiskTier] > 0 && !s.hostHolds() {
		list = append(list, device.DiskTier)
	}
	return list
}

// hostHolds reports whether the host has room for all parameters, gradients and
// optimizer state, and for all activations of a step.
func (s *search) hostHolds() bool {
	weight, grad, state := s.perElement(residency{})
	n, frozen := s.elements()
	need := n*(weight+grad+state) + frozen*weight
	for i := range s.graph.Segments {
		for _, v := range s.graph.Segments[i].Saved {
			need += float64(s.batch*s.graph.Seq) * float64(s.graph.Values[v].Cols) * float64(s.graph.Values[v].DType.Size())
		}
	}
	return need <= float64(s.m.Capacity[device.HostTier])
}

// lastKept returns policy r for all layers but the last kept ones, which keep
// everything.
func (s *search) lastKept(r plan.Retention, kept int) []plan.Retention {
	layers := s.graph.Model.Layers
	kept = min(kept, layers)
	return append(slices.Repeat([]plan.Retention{r}, layers-kept), slices.Repeat([]plan.Retention{plan.Recomputed("none")}, kept)...)
}

// activations overrides policies by the user's decisions.
func (p *Pins) activations(keep []plan.Retention) []plan.Retention {
	if len(p.Activations) == 0 {
		return keep
	}
	keep = slices.Clone(keep)
	for l, r := range p.Activations {
		keep[l] = r
	}
	return keep
}

// memo returns MEMO's policy for a layer, its share rounded down to a multiple of
// 1/plan.SwapParts.
func (s *search) memo(t device.Tier, b, group int) plan.Retention {
	return plan.SwapOf(t, math.Floor(s.memoShare(b, group)*plan.SwapParts)/plan.SwapParts)
}

// memoShare returns MEMO's closed form (section 4.1):
//
//	share = (min(B*T, M/(n-2)) - S_in - S_attn) / S_others, within 0 and 1
//
// where B is the link's bandwidth, T a layer's forward time, n the number of layers,
// S the bytes of a layer's activations, and M the host's memory, which all
// micro-batches of a group share.
func (s *search) memoShare(b, group int) float64 {
	rows, layers := b*s.graph.Seq, s.graph.Model.Layers
	var forward float64
	typical := &s.graph.Segments[layers] // lower layers may be frozen
	for i := range typical.Forward {
		forward += s.m.Cost.Cost(s.call(&typical.Forward[i], rows))
	}
	saved := plan.Saved(s.graph, layers-1, rows)
	whole, rest := saved[plan.InputAct]+saved[plan.AttentionAct], saved[plan.LinearAct]+saved[plan.LightAct]
	if rest == 0 {
		return 0
	}
	from := device.Operand{Tier: device.DeviceTier, Rows: 1, Cols: int(rest / 4), Stride: int(rest / 4)}
	to := from
	to.Tier = device.HostTier
	copied := &device.Call{Op: graph.Copy, Stream: device.DevToHost, Args: []device.Operand{to, from}}
	window := float64(rest) / s.m.Cost.Cost(copied) * forward
	host := float64(s.m.Capacity[device.HostTier]) / float64(max(layers-MemoKept, 1)*group)
	return min(max((min(window, host)-float64(whole))/float64(rest), 0), 1)
}

// improve refines the activation policies of the fastest candidates, one of each
// kind: patterns for all of them, moves for the best (polish).
func (s *search) improve() error {
	type kind struct {
		b, group int
		r        residency
	}
	if !s.refines() {
		return nil
	}
	seen := map[kind]bool{}
	var list []*Candidate
	for _, c := range slices.Clone(s.found) {
		k := kind{c.choice.b, c.choice.group, c.choice.r}
		if seen[k] || len(seen) == mostKinds || s.tired() {
			continue
		}
		seen[k] = true
		c, err := s.refine(c)
		if err != nil {
			return err
		}
		list = append(list, c)
	}
	return s.polish(list)
}

// refines reports whether the user leaves each layer's activation policy to the search, and there is a choice.
func (s *search) refines() bool {
	p := &s.req.Pins
	return p.Recompute == "" && p.Policy == "" && len(p.Activations) == 0 && len(s.swapTiers()) > 0
}

// refinement searches for better activation policies, starting from one candidate.
type refinement struct {
	*search
	best  *Candidate
	left  int     // evaluations
	floor float64 // lower bound in seconds on the step, whatever the activation policy
}

// steps bounds the evaluations of a refinement, instructions the instructions that it lowers, and exchanged
// those that its last part (exchange) lowers. That part matters where a layer is a large part of the device.
const steps, instructions, exchanged = 100, 1_000_000, 50_000

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

// refinement begins a refinement of a candidate.
func (s *search) refinement(base *Candidate) *refinement {
	return &refinement{s, base, min(steps, instructions/len(base.Program.Instrs)), floor(base)}
}

// refine returns a candidate with the best of the patterns.
func (s *search) refine(base *Candidate) (*Candidate, error) {
	r := s.refinement(base)
	if r.needless() {
		return base, nil
	}
	s.say(fmt.Sprintf("planning: which activations wait on the host in %s", base.Label))
	if err := r.patterns(); err != nil || r.best == base {
		return base, err
	}
	return r.best, s.keep(r.best)
}

// needless reports whether no other activation policy can make the candidate the fastest.
func (r *refinement) needless() bool {
	return r.done() || r.floor >= r.found[0].Seconds() || r.best.roomy()
}

// roomy reports whether all activations are kept and nothing else could use their
// memory.
func (c *Candidate) roomy() bool {
	return c.choice.r.state == device.DeviceTier && !slices.ContainsFunc(c.Plan.Activations, func(r plan.Retention) bool { return r != plan.Recomputed("none") })
}

// done reports whether nothing can be gained or the effort is spent.
func (r *refinement) done() bool {
	return r.left <= 0 || r.tired() || r.best.Seconds() <= r.floor*(1+2e-3)
}

// consider evaluates a choice and takes it if it fits and is faster, or as fast
// with less memory.
func (r *refinement) consider(ch choice) (taken bool, err error) {
	r.left--
	c, err := r.evaluate(ch)
	if err != nil || !c.Fits {
		return false, err
	}
	return r.take(c)
}

func (r *refinement) take(c *Candidate) (bool, error) {
	if err := c.simulate(r.m); err != nil {
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

// patterns tries the same policy for all layers but the last ones, which keep
// everything.
func (r *refinement) patterns() error {
	base, layers := r.best.choice, r.graph.Model.Layers
	for _, t := range r.swapTiers() {
		for _, p := range r.patternsOn(t) {
			ch := base
			fit, err := r.first(layers+1, func(i int) choice {
				r.left--
				ch.keep = r.lastKept(p, layers-i)
				return ch
			})
			if err != nil {
				return err
			}
			if fit == nil {
				continue
			}
			if _, err := r.take(fit); err != nil {
				return err
			}
		}
	}
	return nil
}

// patternsOn returns the policies to try with a swap tier.
func (r *refinement) patternsOn(t device.Tier) (list []plan.Retention) {
	all := plan.Fate{Tier: t, Share: 1}
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
	return append(list, plan.SwapOf(t, 1), r.memo(t, r.best.choice.b, r.best.choice.group))
}

// moves tries other policies for one activation class in a run of layers.
func (r *refinement) moves() error {
	layers := r.graph.Model.Layers
	for size := layers; size >= 1; size /= 2 {
		for lo := 0; lo < layers; lo += size {
			for a := range plan.NumActs {
				for _, f := range r.fates(a, r.best.choice.keep[lo][a]) {
					if r.done() {
						return nil
					}
					ch := r.best.choice
					ch.keep = slices.Clone(ch.keep)
					for l := lo; l < min(lo+size, layers); l++ {
						ch.keep[l][a] = f
					}
					if _, err := r.consider(ch); err != nil {
						return err
					}
				}
			}
		}
		if err := r.slots(); err != nil {
			return err
		}
		if err := r.residents(); err != nil {
			return err
		}
	}
	return r.exchange()
}

// exchange trades one resident chunk, more or less, for a change of one activation
// class in one layer. Alone, neither change fits or helps.
func (r *refinement) exchange() error {
	p := &r.req.Pins
	if p.Weights != nil || p.Grads != nil || p.State != nil || r.best.choice.r.state == device.DeviceTier {
		return nil
	}
	r.left = min(r.left, exchanged/len(r.best.Program.Instrs))
	for better := true; better; {
		better = false
		for _, d := range []int{1, -1} {
			taken, err := r.trade(d)
			if err != nil {
				return err
			}
			better = better || taken
		}
	}
	return nil
}

func (r *refinement) trade(chunks int) (taken bool, err error) {
	base := r.best
	ch := base.choice
	if ch.residents += chunks; ch.residents < 0 || ch.residents > len(base.Plan.Chunks) {
		return false, nil
	}
	for l := range ch.keep {
		for a := range plan.NumActs {
			for _, f := range r.fates(a, base.choice.keep[l][a]) {
				if r.done() {
					return taken, nil
				}
				ch.keep = slices.Clone(base.choice.keep)
				ch.keep[l][a] = f
				better, err := r.consider(ch)
				if err != nil {
					return taken, err
				}
				taken = taken || better
			}
		}
	}
	return taken, nil
}

// slots tries fewer staging slots, which need less memory, and more, which give
// copies more time.
func (r *refinement) slots() error {
	for _, n := range []int{r.best.Plan.Slots - 1, r.best.Plan.Slots + 1} {
		ch := r.best.choice
		if ch.slots = n; n < 1 || r.req.Pins.Slots > 0 || r.done() {
			continue
		}
		if _, err := r.consider(ch); err != nil {
			return err
		}
	}
	return nil
}

// residents keeps as many more chunks on the device as fit in the memory that the moves freed.
func (r *refinement) residents() error {
	p, base := &r.req.Pins, r.best.choice
	if p.Weights != nil || p.Grads != nil || p.State != nil || base.r.state == device.DeviceTier || r.done() {
		return nil
	}
	chunks := len(r.best.Plan.Chunks)
	fit, err := r.first(chunks-base.residents, func(i int) choice {
		r.left--
		ch := base
		ch.residents = chunks - i
		return ch
	})
	if err != nil || fit == nil {
		return err
	}
	_, err = r.take(fit)
	return err
}

// fates returns the alternatives to the present policy of an activation class.
func (r *refinement) fates(a plan.Act, now plan.Fate) []plan.Fate {
	set := map[plan.Fate]bool{plan.Kept: true, plan.Remade: a != plan.InputAct}
	for _, t := range r.swapTiers() {
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
