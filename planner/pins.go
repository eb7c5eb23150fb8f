package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// pins validates and returns the plan decisions that the configuration makes.
func (t *Task) pins() (search.Pins, error) {
	c, g := t.Config, t.Graph
	p := search.Pins{MicroBatch: c.Plan.MicroBatch, Group: c.Plan.Group, HeadRows: c.Plan.HeadRows, Recompute: c.Plan.Recompute,
		Cache: int64(c.Plan.Cache), Prefetch: c.Plan.Prefetch, Slots: c.Plan.Slots, Policy: c.Plan.Policy, Update: c.Plan.Update}
	if err := t.pinTiers(&p); err != nil {
		return p, err
	}
	if p.Update != "" && !slices.Contains(search.Updaters(), p.Update) {
		return p, c.Fault("plan.update", fmt.Sprintf("%q is not known; hint: use one of %s, or leave it out", p.Update, strings.Join(search.Updaters(), ", ")))
	}
	if b := p.MicroBatch; b < 0 || b > 0 && c.GlobalBatch%b != 0 {
		return p, c.Fault("plan.micro_batch", fmt.Sprintf("%d does not divide global_batch %d; hint: use a divisor", b, c.GlobalBatch))
	}
	for _, d := range []struct {
		key     string
		n, most int64
	}{
		{"group", int64(p.Group), 1 << 20}, {"head_rows", int64(p.HeadRows), 1 << 30},
		{"cache_bytes", p.Cache, math.MaxInt64}, {"prefetch", int64(p.Prefetch), 1 << 20},
	} {
		if d.n < 0 || d.n > d.most {
			return p, c.Fault("plan."+d.key, fmt.Sprintf("%d is out of range; hint: use from 1 to %d, or leave it out", d.n, d.most))
		}
	}
	if err := t.checkRows(&p); err != nil {
		return p, err
	}
	if need := cacheNeeded(g); p.Cache > 0 && p.Cache < need && (p.Weights == nil || *p.Weights != device.DeviceTier) {
		return p, c.Fault("plan.cache_bytes", fmt.Sprintf("%d bytes is too small; hint: use at least %d, the weights that one layer reads, or leave it out", p.Cache, need))
	}
	if p.Recompute != "" {
		if bad := plan.CheckRecompute(p.Recompute); bad != "" {
			return p, c.Fault("plan.recompute", bad)
		}
	}
	if err := t.pinPipeline(&p); err != nil {
		return p, err
	}
	return p, t.pinActivations(&p)
}

// cacheNeeded is the least cache_bytes with which all weights can be streamed.
func cacheNeeded(g *graph.Graph) int64 {
	pl := plan.Plain(g, 1)
	for i := range pl.Chunks {
		pl.Chunks[i].Weights = device.HostTier
	}
	return pl.CacheNeeded(g)
}

// pinTiers validates and adds the tiers in which the configuration wants weights, gradients and the optimizer's
// state.
func (t *Task) pinTiers(p *search.Pins) error {
	c := t.Config
	for _, pin := range []struct {
		key, name string
		to        **device.Tier
	}{{"plan.weights", c.Plan.Weights, &p.Weights}, {"plan.grads", c.Plan.Grads, &p.Grads}, {"plan.state", c.Plan.State, &p.State}} {
		if pin.name == "" {
			continue
		}
		tier, err := device.ParseTier(pin.name)
		if err != nil {
			return c.Fault(pin.key, err.Error())
		}
		if t.Machine.Capacity[tier] == 0 {
			return c.Fault(pin.key, fmt.Sprintf("there is no %v memory; hint: check limits.%v and limits.disk_path", tier, tier))
		}
		*pin.to = &tier
	}
	return nil
}

// checkRows refuses micro-batches and blocks of the head at which sums over tokens
// cannot be cut.
func (t *Task) checkRows(p *search.Pins) error {
	c, g := t.Config, t.Graph
	if n := p.HeadRows; n > 0 && c.SequenceLength%n != 0 && n%c.SequenceLength != 0 {
		return c.Fault("plan.head_rows", fmt.Sprintf("%d is neither a divisor nor a multiple of sequence_length %d; hint: use either, or leave it out", n, c.SequenceLength))
	} else if req := t.Request(); !req.HeadFits(n) {
		return c.Fault("plan.head_rows", fmt.Sprintf("%d is not a multiple of %d tokens, at which sums on a GPU are cut; hint: use a multiple, or leave it out", n, req.HeadUnit))
	}
	batch := max(c.GlobalBatch/t.Machine.Ranks(), 1)
	rows := c.SequenceLength * cmp.Or(p.MicroBatch, batch)
	if !g.Takes(rows, c.SequenceLength*batch) {
		return c.Fault("plan.micro_batch", fmt.Sprintf("%d makes micro-batches of %d tokens, not of a multiple of %d, at which sums in bf16 are cut; hint: use an even number, or all of the batch", p.MicroBatch, rows, g.CutUnit()))
	} else if n := p.HeadRows; !g.Takes(n, rows) {
		return c.Fault("plan.head_rows", fmt.Sprintf("%d is not a multiple of %d tokens, at which sums in bf16 are cut; hint: use a multiple, or leave it out", n, g.CutUnit()))
	}
	return nil
}

// pinActivations validates and adds the configuration's activation policies.
func (t *Task) pinActivations(p *search.Pins) error {
	c, m := t.Config, t.Machine
	layers := t.Graph.Model.Layers
	tier, err := device.ParseTier(cmp.Or(c.Plan.SwapTier, device.HostTier.String()))
	swaps := c.Plan.Swap != nil || c.Plan.Policy != ""
	switch {
	case err != nil || tier == device.DeviceTier:
		return c.Fault("plan.swap_tier", fmt.Sprintf("%q is no tier to swap to; hint: use host or disk", c.Plan.SwapTier))
	case c.Plan.SwapTier != "" && c.Plan.Swap == nil:
		return c.Fault("plan.swap_tier", "plan.swap is not set, so nothing is swapped; hint: set plan.swap, or leave plan.swap_tier out")
	case c.Plan.Policy != "" && !slices.Contains(search.ActivationRules(), c.Plan.Policy):
		return c.Fault("plan.policy", fmt.Sprintf("%q is not known; hint: use %s, or leave it out", c.Plan.Policy, strings.Join(search.ActivationRules(), ", ")))
	case c.Plan.Policy != "" && c.Plan.Recompute != "":
		return c.Fault("plan.policy", "a policy also decides what is recomputed; hint: leave plan.recompute out")
	case c.Plan.Slots < 0 || c.Plan.Slots > 1<<10:
		return c.Fault("plan.slots", fmt.Sprintf("%d is out of range; hint: use from 1 to %d; 2 is enough unless links are slow", c.Plan.Slots, 1<<10))
	case swaps && m.Capacity[device.HostTier] == 0:
		key := "plan.swap"
		if c.Plan.Swap == nil {
			key = "plan.policy"
		}
		return c.Fault(key, "there is no host memory to swap to; hint: check limits.host")
	case swaps && m.Capacity[tier] == 0:
		return c.Fault("plan.swap_tier", fmt.Sprintf("there is no %v memory; hint: check limits.%v and limits.disk_path", tier, tier))
	}
	if len(c.Plan.Swap) > 0 { // else leave it nil, see search.Pins.Open
		p.Activations = map[int]plan.Retention{}
	}
	for l, share := range c.Plan.Swap {
		switch {
		case l >= layers:
			return c.Fault("plan.swap", fmt.Sprintf("there is no layer %d; hint: layers are numbered from 0 to %d", l, layers-1))
		case l != config.EveryLayer:
			p.Activations[l] = plan.SwapOf(tier, share)
		}
	}
	if share, ok := c.Plan.Swap[config.EveryLayer]; ok {
		for l := range layers - search.MemoKept {
			p.Activations[l] = plan.SwapOf(tier, share)
		}
	}
	return nil
}
