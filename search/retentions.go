package search

import (
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
)

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

// ladder is a list of activation policies for all layers, from least work to least memory.
type ladder [][]plan.Retention

// rung returns the index of an activation policy in a ladder, or -1.
func (l ladder) rung(keep []plan.Retention) int {
	return slices.IndexFunc(l, func(r []plan.Retention) bool { return slices.Equal(r, keep) })
}

// ladders lists activation policies for a choice of micro-batches. The first ladder goes from least work to
// least memory: one choice after the other, and within a choice layer by layer from
// the first, since its activations wait longest. The others are MEMO's policy and
// full swapping, included so that the plan is never slower than these.
func (p *problem) ladders(ch choice) []ladder {
	layers, pins := p.graph.Model.Layers, &p.req.Pins
	var policies []ladder
	if len(p.swapTiers()) > 0 {
		for _, r := range []plan.Retention{p.memoPolicy(device.HostTier, ch), plan.SwapOf(device.HostTier, 1)} {
			policies = append(policies, ladder{p.keepLast(r, MemoKept)})
		}
	}
	if pins.Policy == MemoRule {
		return policies[:1]
	}
	var choices []plan.Retention
	for _, name := range plan.Recomputations() {
		if pins.Recompute == "" || pins.Recompute == name {
			choices = append(choices, plan.Recomputed(name))
		}
	}
	if pins.Recompute == "" {
		for _, t := range p.swapTiers() {
			choices = append(choices, plan.Retention{{Tier: t, Share: 1}, plan.Remade, plan.Remade, plan.Remade})
		}
	}
	list := ladderOf(layers, choices)
	if pins.Recompute != "" || len(pins.Activations) > 0 {
		policies = nil
	}
	return append([]ladder{list}, policies...)
}

// swapTiers returns the tiers that activations may be swapped to, nearest first.
// The disk is included only if the host cannot hold everything.
func (p *problem) swapTiers() (list []device.Tier) {
	if p.machine.Capacity[device.HostTier] > 0 {
		list = append(list, device.HostTier)
	}
	if len(list) > 0 && p.machine.Capacity[device.DiskTier] > 0 && !p.hostHolds() {
		list = append(list, device.DiskTier)
	}
	return list
}

// hostHolds reports whether the host has room for all parameters, gradients and
// optimizer state, and for all activations of a step.
func (p *problem) hostHolds() bool {
	weight, grad, state := p.bytesPerElement(residency{})
	need := p.trained*(weight+grad+state) + p.frozen*weight
	for i := range p.graph.Segments {
		for _, v := range p.graph.Segments[i].Saved {
			need += float64(p.batch*p.graph.Seq) * float64(p.graph.Values[v].Cols) * float64(p.graph.Values[v].DType.Size())
		}
	}
	return need <= float64(p.machine.Capacity[device.HostTier])
}

// keepLast returns policy r for all layers but the last kept ones, which keep
// everything.
func (p *problem) keepLast(r plan.Retention, kept int) []plan.Retention {
	layers := p.graph.Model.Layers
	kept = min(kept, layers)
	return append(slices.Repeat([]plan.Retention{r}, layers-kept), slices.Repeat([]plan.Retention{plan.Recomputed("none")}, kept)...)
}

// memoPolicy returns MEMO's policy for a layer, its share rounded down to a multiple of
// 1/plan.SwapParts.
func (p *problem) memoPolicy(t device.Tier, ch choice) plan.Retention {
	return plan.SwapOf(t, math.Floor(p.memoShare(ch.b, ch.group, plan.LinearAct, plan.LightAct)*plan.SwapParts)/plan.SwapParts)
}

// productsPolicy is likewise, but light operators are recomputed, so that more of the products' results fit.
func productsPolicy(p *problem, t device.Tier, ch choice) plan.Retention {
	share := math.Floor(p.memoShare(ch.b, ch.group, plan.LinearAct)*plan.SwapParts) / plan.SwapParts
	all, part := plan.Fate{Tier: t, Share: 1}, plan.Fate{Tier: t, Share: share}
	if share == 0 {
		part = plan.Remade
	}
	return plan.Retention{all, all, part, plan.Remade}
}

// memoShare returns MEMO's closed form (section 4.1) for the share of some classes of activations:
//
//	share = (min(B*T, M/(n-2)) - S_in - S_attn) / S_classes, within 0 and 1
//
// where B is the link's bandwidth, T a layer's forward time, n the number of layers,
// S the bytes of a layer's activations, and M the host's memory, which all
// micro-batches of a group share.
func (p *problem) memoShare(b, group int, classes ...plan.Act) float64 {
	rows, layers := b*p.graph.Seq, p.graph.Model.Layers
	var forward float64
	typical := &p.graph.Segments[layers] // lower layers may be frozen
	for i := range typical.Forward {
		forward += p.prices.node(&typical.Forward[i], rows)
	}
	saved := plan.Saved(p.graph, layers-1, rows)
	whole, rest := saved[plan.InputAct]+saved[plan.AttentionAct], int64(0)
	for _, a := range classes {
		rest += saved[a]
	}
	if rest == 0 {
		return 0
	}
	from := device.Operand{Tier: device.DeviceTier, Rows: 1, Cols: int(rest / 4), Stride: int(rest / 4)}
	to := from
	to.Tier = device.HostTier
	copied := &device.Call{Op: graph.Copy, Stream: device.DevToHost, Args: []device.Operand{to, from}}
	window := float64(rest) / p.machine.Cost.Cost(copied) * forward
	host := float64(p.machine.Capacity[device.HostTier]) / float64(max(layers-MemoKept, 1)*group)
	return min(max((min(window, host)-float64(whole))/float64(rest), 0), 1)
}

// ladderOf lists activation policies of some layers, from least work to least memory:
// one choice after the other, and within a choice layer by layer from the first.
func ladderOf(layers int, choices []plan.Retention) ladder {
	list := ladder{slices.Repeat(choices[:1], layers)}
	for _, c := range choices[1:] {
		for l := range layers {
			next := slices.Clone(list[len(list)-1])
			next[l] = c
			list = append(list, next)
		}
	}
	return list
}

// rungsAbove lists policies with more memory and less work than a choice's: all layers keep everything, then ever
// fewer of the last ones.
func (p *problem) rungsAbove(ch choice) (l ladder) {
	most := p.ladders(ch)[0][0]
	for i := range ch.keep {
		l = append(l, slices.Concat(ch.keep[:i], most[i:]))
	}
	return slices.DeleteFunc(slices.CompactFunc(l, slices.Equal), func(keep []plan.Retention) bool { return slices.Equal(keep, ch.keep) })
}

// rungsBelow lists policies with less memory and more work than a choice's: ever more of the first layers have the
// most frugal policy.
func (p *problem) rungsBelow(ch choice) (l ladder) {
	list := p.ladders(ch)[0]
	least := list[len(list)-1]
	for i := range ch.keep {
		l = append(l, slices.Concat(least[:i+1], ch.keep[i+1:]))
	}
	return slices.DeleteFunc(slices.CompactFunc(l, slices.Equal), func(keep []plan.Retention) bool { return slices.Equal(keep, ch.keep) })
}
